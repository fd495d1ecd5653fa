#include "train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mhla/core/atomic_file.h"
#include "mhla/error.h"

namespace mhla::train {
namespace {

using Clock = std::chrono::steady_clock;
using json = nlohmann::ordered_json;  // the first number of a line is what runs are ranked by

constexpr const char* kWhere = "train.log";

// The lines up to `step`, as they were; one cut off by a crash goes.
void keep_until(const std::string& path, std::int64_t step) {
  std::ifstream file(path);
  if (!file) return;
  std::string kept, line;
  while (std::getline(file, line)) {
    const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (entry.is_object() && entry.value("step", step + 1) <= step) kept += line + "\n";
  }
  AtomicFile replaced(path, kWhere);
  replaced.write(kept.data(), kept.size());
  replaced.commit();
}

std::string duration(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  char text[48];
  if (whole >= 86400) {
    std::snprintf(text, sizeof text, "%lldd%02lldh", whole / 86400, whole % 86400 / 3600);
  } else if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lldh%02lldm", whole / 3600, whole % 3600 / 60);
  } else {
    std::snprintf(text, sizeof text, "%lldm%02llds", whole / 60, whole % 60);
  }
  return text;
}

std::string words(const Numbers& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    char each[96];
    std::snprintf(each, sizeof each, "%s%s %.5g", text.empty() ? "" : ", ", name.c_str(), value);
    text += each;
  }
  return text;
}

}  // namespace

RunLog::RunLog(const std::string& folder, std::int64_t step, std::int64_t total_steps)
    : path_(folder + "/log.jsonl"),
      total_(total_steps),
      terminal_(::isatty(STDERR_FILENO) == 1),
      begin_(Clock::now()),
      shown_(begin_),
      first_step_(step) {
  keep_until(path_, step);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(ErrorCode::io, kWhere, "cannot open '", path_, "': ", std::strerror(errno));
  board_ = std::make_unique<io::TensorBoard>(folder + "/tensorboard", step > 0 ? step + 1 : 0);
}

RunLog::~RunLog() {
  if (file_ >= 0) ::close(file_);
}

std::string RunLog::time_left(std::int64_t step) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  const auto done = static_cast<double>(step - first_step_);
  if (done < 1) return {};
  return ", " + duration(seconds / done * static_cast<double>(total_ - step)) + " left";
}

void RunLog::write(const char* kind, std::int64_t step, double epoch, const Numbers& numbers) {
  json line = {{"kind", kind}, {"step", step}, {"epoch", epoch}};
  Numbers tagged;
  for (const auto& [name, value] : numbers) {
    line[name] = value;
    tagged.emplace_back(std::string(kind) + "/" + name, value);
  }
  const std::string text = line.dump() + "\n";
  // One call a line, so that a crash cuts off at most the last.
  const ::ssize_t written = ::write(file_, text.data(), text.size());
  if (written != static_cast<::ssize_t>(text.size())) {
    fail(ErrorCode::io, kWhere, "cannot write '", path_,
         "': ", written < 0 ? std::strerror(errno) : "no space left");
  }
  board_->scalars(step, tagged);
  board_->flush();
  const bool training = std::string_view(kind) == "train";
  if (training) last_ = words(numbers);
  if (training && terminal_) return;  // the progress line has it
  say(std::string(kind) + ": step " + std::to_string(step) + "/" + std::to_string(total_) + ", " +
      words(numbers) + (training ? time_left(step) : ""));
}

void RunLog::progress(std::int64_t step) {
  const auto now = Clock::now();
  if (!terminal_ || (now - shown_ < std::chrono::milliseconds(200) && step != total_)) return;
  shown_ = now;
  std::fprintf(stderr, "\r\033[Kstep %lld/%lld, %s%s", static_cast<long long>(step),
               static_cast<long long>(total_), last_.c_str(), time_left(step).c_str());
  std::fflush(stderr);
}

void RunLog::say(const std::string& line) {
  std::fprintf(stderr, "%s%s\n", terminal_ ? "\r\033[K" : "", line.c_str());
}

}  // namespace mhla::train
