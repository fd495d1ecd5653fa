// The kernels compiled for each instruction set, and which of them this machine runs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mhla/cpu/dense.h"
#include "mhla/cpu/geometry.h"
#include "mhla/cpu/team.h"

namespace mhla::cpu {

// The first `alone` heads are taken by single threads, each with a slot of its own; all threads
// share the others one by one, in slot 0.
struct ForwardCall {
  const Problem& problem;
  const ForwardInputs& in;
  const ForwardOutputs& out;
  Index heads, alone;
  std::span<const Slot> slots;
  std::span<const Scratch> scratch;
};

struct BackwardCall {
  const Problem& problem;
  const BackwardInputs& in;
  const BackwardOutputs& out;
  Index heads, alone;
  std::span<const Slot> slots;
  std::span<const Scratch> scratch;
  float* d_mixing;  // shares of `wave` heads, one after another
  Index wave;       // heads between two additions of their shares
};

struct Kernels {
  const char* target;                                    // instruction set, as Highway names it
  void (*forward)(const ForwardCall& call, Team& team);  // called by every thread of the team
  void (*backward)(const BackwardCall& call, Team& team);
  void (*dense_forward)(const DenseForwardCall& call, Team& team);
  void (*dense_backward)(const DenseBackwardCall& call, Team& team);
  double (*peak)(double seconds);  // flop/s of the inner loop on one core, measured for that long
  double rate;  // flop/s of a forward pass on one core of Zen 4, measured (docs/kernels/cpu.md)
};

// The best set this machine runs, unless a test chose another.
const Kernels& kernels();

std::vector<std::string> runnable_targets();      // best first
void choose_target_for_test(std::string target);  // empty: the best again

}  // namespace mhla::cpu
