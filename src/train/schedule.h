// The learning rate of each update.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace mhla::train {

class Schedule {
 public:
  // `epochs` without the cool-down; `steps`: all updates of the run where the configuration counts
  // them, else 0.
  Schedule(const ScheduleOptions& options, double lr, std::int64_t steps_per_epoch,
           std::int64_t epochs, std::int64_t steps);

  double lr(std::int64_t step) const;  // step: from 0
  std::int64_t total_steps() const { return total_; }

 private:
  ScheduleOptions options_;
  double lr_;
  std::int64_t steps_per_epoch_;
  double warmup_, length_;  // in the unit of the schedule
  std::int64_t total_;
};

}  // namespace mhla::train
