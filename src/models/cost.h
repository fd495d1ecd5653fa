// Arithmetic and memory of a network, part by part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mhla::models {

struct Cost {
  std::string part;
  double macs = 0;  // multiply-adds of one forward pass; FLOPs are twice that
  double kept = 0;  // elements that the backward pass needs
};

// One sample, batch 1. Counted are products (linear layers, convolutions, attention), as the paper
// does; norms, activations and additions are not.
class CostSheet {
 public:
  // rows of width `in` to rows of width `out`; the input is kept for the weight's gradient
  void linear(const std::string& part, double rows, double in, double out);
  // `macs` and `kept` of anything else
  void add(const std::string& part, double macs, double kept);
  // A norm or an activation keeps what it reads.
  void keep(const std::string& part, double elements) { add(part, 0, elements); }

  const std::vector<Cost>& parts() const { return parts_; }  // in order of first mention
  double macs() const;
  double kept() const;
  double macs_of(const std::string& part) const;

 private:
  std::vector<Cost> parts_;
};

}  // namespace mhla::models
