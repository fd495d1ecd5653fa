// What a run reports: log.jsonl, TensorBoard, and lines or a progress line on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/tensorboard.h"

namespace mhla::train {

using Numbers = std::vector<std::pair<std::string, double>>;

class RunLog {
 public:
  // Lines of steps after `step` are dropped from log.jsonl: they will be written again.
  RunLog(const std::string& folder, std::int64_t step, std::int64_t total_steps);
  ~RunLog();

  // kind: "train", "eval". Goes to all three.
  void write(const char* kind, std::int64_t step, double epoch, const Numbers& numbers);

  // The progress line of a terminal; elsewhere nothing.
  void progress(std::int64_t step);
  void say(const std::string& line);

 private:
  std::string time_left(std::int64_t step) const;

  std::string path_;
  std::int64_t total_;
  bool terminal_;
  int file_ = -1;
  std::unique_ptr<io::TensorBoard> board_;
  std::chrono::steady_clock::time_point begin_, shown_;
  std::int64_t first_step_;
  std::string last_;  // of the progress line: the last numbers of training
};

}  // namespace mhla::train
