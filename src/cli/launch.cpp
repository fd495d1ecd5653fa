// Children, their environment, and what happens when one of them dies.
#include "cli/launch.h"

#include <arpa/inet.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "mhla/error.h"
#include "train/launcher.h"

extern char** environ;

namespace mhla::cli {
namespace {

using train::kLauncher;

volatile std::sig_atomic_t g_terminate = 0;

// Ctrl-C goes to the whole group by itself: the children finish their step, we wait for them.
class WaitingSignals {
 public:
  WaitingSignals() {
    struct sigaction ignore{}, note{};
    ignore.sa_handler = SIG_IGN;
    note.sa_handler = [](int) { g_terminate = 1; };
    sigaction(SIGINT, &ignore, &interrupt_);
    sigaction(SIGTERM, &note, &terminate_);
  }
  ~WaitingSignals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  WaitingSignals(const WaitingSignals&) = delete;
  WaitingSignals& operator=(const WaitingSignals&) = delete;

 private:
  struct sigaction interrupt_{}, terminate_{};
};

int free_port() {
  const int socket_file = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = socket_file >= 0 &&
                     bind(socket_file, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(socket_file, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (socket_file >= 0) close(socket_file);
  if (!found) fail(ErrorCode::io, "launch", "no free port: ", std::strerror(errno));
  return ntohs(address.sin_port);
}

std::vector<std::string> environment_of(int rank, int world, int port) {
  const std::map<std::string, std::string> ours = {
      {"RANK", std::to_string(rank)},        {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(world)}, {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)}, {kLauncher, std::to_string(getpid())}};
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!ours.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : ours) all.emplace_back(name).append("=").append(value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return std::string("was killed by ") + strsignal(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

class Children {
 public:
  ~Children() { end_all(); }

  void start(std::vector<std::string> command, int processes) {
    const int port = free_port();
    for (int rank = 0; rank < processes; ++rank) {
      std::vector<std::string> environment = environment_of(rank, processes, port);
      pid_t pid = 0;
      // NOTE: the path of this program, not its name: it may be gone from PATH or renamed.
      const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                                    pointers(command).data(), pointers(environment).data());
      if (error != 0) fail(ErrorCode::io, "launch", "no new process: ", std::strerror(error));
      running_[pid] = rank;
    }
  }

  void wait() {
    const int world = static_cast<int>(running_.size());
    while (!running_.empty()) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, 0);
      if (pid < 0) {  // a signal
        if (g_terminate) signal_all(SIGTERM);
        g_terminate = 0;
        continue;
      }
      const auto found = running_.find(pid);
      if (found == running_.end()) continue;
      const int rank = found->second;
      running_.erase(found);
      if (status == 0) continue;
      end_all();
      fail(ErrorCode::io, "launch", "process ", rank, " of ", world, " ", how_it_ended(status),
           " and the others were ended: --resume goes on from the last checkpoint");
    }
  }

 private:
  void signal_all(int signal) const {
    for (const auto& [pid, rank] : running_) kill(pid, signal);
  }

  // At once: they can only wait for the one that is gone, and checkpoints are whole or absent.
  void end_all() {
    signal_all(SIGKILL);
    for (const auto& [pid, rank] : running_) waitpid(pid, nullptr, 0);
    running_.clear();
  }

  std::map<pid_t, int> running_;  // rank of each
};

}  // namespace

void launch(const std::vector<std::string>& command, int processes) {
  const WaitingSignals signals;
  Children children;
  children.start(command, processes);
  children.wait();
}

std::vector<std::string> own_command_without_processes() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    words.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  for (std::size_t i = 0; i < words.size();) {
    if (words[i] == "--processes" && i + 1 < words.size()) {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    } else if (words[i].starts_with("--processes=")) {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return words;
}

}  // namespace mhla::cli
