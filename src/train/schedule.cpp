#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "mhla/error.h"

namespace mhla::train {

Schedule::Schedule(const ScheduleOptions& options, double lr, std::int64_t steps_per_epoch,
                   std::int64_t epochs, std::int64_t steps)
    : options_(options), lr_(lr), steps_per_epoch_(steps_per_epoch) {
  if (options.warmup_epochs < 0 || options.warmup_steps < 0 || options.cooldown_epochs < 0) {
    fail("train", "train.schedule: epochs and steps cannot be negative");
  }
  if (options.warmup_epochs > 0 && options.warmup_steps > 0) {
    fail("train", "train.schedule: warmup_epochs and warmup_steps: give one of them");
  }
  if (!(options.decay_share >= 0 && options.decay_share <= 1)) {
    fail("train", "train.schedule.decay_share: expected 0 to 1, got ", options.decay_share);
  }
  const std::int64_t varied = steps > 0 ? steps : epochs * steps_per_epoch;
  total_ = varied + options.cooldown_epochs * steps_per_epoch;
  const double per_unit = options.unit == "epoch" ? static_cast<double>(steps_per_epoch) : 1.0;
  const std::int64_t warmup_steps = options.warmup_steps + options.warmup_epochs * steps_per_epoch;
  warmup_ = static_cast<double>(warmup_steps) / per_unit;
  length_ = static_cast<double>(varied) / per_unit;
}

// spec: t < warm: w0 + t (lr - w0) / T_w; else min + (lr - min) (1 + cos(pi t / T)) / 2, with t
// counted from 0 also after the warm-up.
double Schedule::lr(std::int64_t step) const {
  const double t = options_.unit == "epoch" ? static_cast<double>(step / steps_per_epoch_)
                                            : static_cast<double>(step);
  if (t < warmup_) return options_.warmup_lr + t * (lr_ - options_.warmup_lr) / warmup_;
  if (t >= length_) return options_.name == "constant" ? lr_ : options_.min_lr;
  if (options_.name == "constant") return lr_;
  if (options_.name == "wsd") {
    const double fall = length_ * options_.decay_share;
    const double left = fall > 0 ? std::min(1.0, (length_ - t) / fall) : 1.0;
    return options_.min_lr + (lr_ - options_.min_lr) * left;
  }
  const double begin = options_.after_warmup ? warmup_ : 0.0;
  const double share = (t - begin) / std::max(length_ - begin, 1.0);
  return options_.min_lr +
         0.5 * (lr_ - options_.min_lr) * (1.0 + std::cos(std::numbers::pi * share));
}

}  // namespace mhla::train
