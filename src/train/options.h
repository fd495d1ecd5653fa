// What the section `train` of a configuration says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mhla::train {

struct OptimizerOptions {
  std::string name = "adamw";
  double lr = 1e-3, weight_decay = 0.05;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.9;  // sgd
  bool nesterov = false;  // sgd
  // Beside biases and whatever has at most one axis; mixing matrices are decayed, as the authors
  // do.
  std::vector<std::string> no_decay{"pos_embed", "cls_token"};

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("name", name, {"adamw", "sgd"});
    visit("lr", lr);
    visit("weight_decay", weight_decay);
    visit("betas", betas);
    visit("eps", eps);
    visit("momentum", momentum);
    visit("nesterov", nesterov);
    visit("no_decay", no_decay);
  }
};

struct ScheduleOptions {
  std::string name = "cosine";
  std::string unit = "step";                         // epoch: the rate changes once an epoch
  std::int64_t warmup_epochs = 0, warmup_steps = 0;  // one of the two
  double warmup_lr = 1e-6, min_lr = 0;
  // The cosine begins at the end of the warm-up (language models) instead of at step 0 (timm).
  bool after_warmup = false;
  std::int64_t cooldown_epochs = 0;  // at min_lr, after the others
  double decay_share = 0.2;          // wsd: this part of all steps, at the end, falls to min_lr

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("name", name, {"cosine", "constant", "wsd"});
    visit("unit", unit, {"step", "epoch"});
    visit("warmup_epochs", warmup_epochs);
    visit("warmup_steps", warmup_steps);
    visit("warmup_lr", warmup_lr);
    visit("min_lr", min_lr);
    visit("after_warmup", after_warmup);
    visit("cooldown_epochs", cooldown_epochs);
    visit("decay_share", decay_share);
  }
};

struct EmaOptions {
  double decay = 0;        // 0: no averaged weights
  std::int64_t start = 2;  // the first update that averages; those before it copy

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("decay", decay);
    visit("start", start);
  }
};

struct TrainOptions {
  std::int64_t seed = 0;
  std::string device = "auto";           // the GPU where there is one
  std::string start_from;                // a file of weights; empty: random ones
  std::int64_t threads = 0;              // of the CPU; 0: LibTorch's choice
  std::int64_t epochs = 300, steps = 0;  // steps, where given, counts
  std::int64_t batch = 1024;             // of all processes and of all parts of one update
  std::int64_t accumulate = 1;           // parts
  std::string precision = "f32";
  bool tf32 = true;  // f32 products of a GPU
  bool deterministic = false;
  std::string graph = "auto";    // of the step on a GPU: auto, on (or an error), off
  bool recompute = false;        // blocks keep their input alone and run again in the backward pass
  bool shard_optimizer = false;  // its state is divided among the processes
  bool sync_batch_norm = true;   // statistics over all processes
  double clip = 0;               // largest norm of all gradients together; 0: off
  double loss_scale = 65536;     // f16: where it starts
  std::int64_t log_every = 50;   // steps
  std::int64_t save_every = 0;   // steps; 0: once an epoch
  std::int64_t keep = 3;         // checkpoints
  std::int64_t eval_every = 1;   // epochs; 0: only at the end
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  EmaOptions ema;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("seed", seed);
    visit("device", device);
    visit("start_from", start_from);
    visit("threads", threads);
    visit("epochs", epochs);
    visit("steps", steps);
    visit("batch", batch);
    visit("accumulate", accumulate);
    visit("precision", precision, {"f32", "bf16", "f16", "f64"});
    visit("tf32", tf32);
    visit("deterministic", deterministic);
    visit("graph", graph, {"auto", "on", "off"});
    visit("recompute", recompute);
    visit("shard_optimizer", shard_optimizer);
    visit("sync_batch_norm", sync_batch_norm);
    visit("clip", clip);
    visit("loss_scale", loss_scale);
    visit("log_every", log_every);
    visit("save_every", save_every);
    visit("keep", keep);
    visit("eval_every", eval_every);
  }
};

}  // namespace mhla::train
