// State files: written whole, read back exactly, and refused when anything about them is wrong.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "mhla/core/state_file.h"
#include "mhla/error.h"
#include "mhla/state.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

namespace fs = std::filesystem;

Problem file_problem(Normalizer normalizer = Normalizer::exact) {
  return {.batch = 1,
          .heads = 2,
          .dk = 2,
          .dv = 1,
          .layout = BlockLayout::sequence(2, {.block = {2}}),
          .mask = Mask::causal,
          .normalizer = normalizer};
}

template <typename Mixing>
State state_of(const Problem& p, const Mixing& mixing, std::int64_t tokens) {
  State state(p, mixing);
  const StreamData<float> data(p, tokens, 1);
  auto o = poisoned<float>(data.v.size());
  state.prefill(data.inputs(0, tokens), data.piece(o, p.dv, 0, tokens));
  return state;
}

std::string small_file() { return state_of(file_problem(), random_mixing(0, 3, 2), 5).serialize(); }

State parse(const std::string& bytes) { return State::deserialize(bytes.data(), bytes.size()); }

void expect_corrupt(const std::string& bytes, const std::string& part) {
  try {
    // A buffer of exactly this size, so that the sanitizer sees a read past its end.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    State::deserialize(exact.data(), exact.size());
    ADD_FAILURE() << "accepted, expected an error with '" << part << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// What an attacker can do: any content, with the checksum that belongs to it.
std::string resealed(std::string bytes) {
  const std::size_t covered = bytes.size() - 8;
  const std::uint64_t sum = streaming::checksum(bytes.data(), covered);
  std::memcpy(bytes.data() + covered, &sum, 8);
  return bytes;
}

template <typename T>
std::string with_number(std::string bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return resealed(bytes);
}

std::string with_problem(const std::string& bytes, const std::string& text) {
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 12, 4);
  std::string changed = bytes.substr(0, 12);
  const auto new_length = static_cast<std::uint32_t>(text.size());
  changed.append(reinterpret_cast<const char*>(&new_length), 4);
  return resealed(changed + text + bytes.substr(16 + length));
}

// Offsets of what follows the problem text.
std::size_t mixing_at(const std::string& bytes) {
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 12, 4);
  return 16 + length;
}
std::size_t tokens_at(const std::string& bytes) { return mixing_at(bytes) + 4 + 3 * 8 + 9 * 4; }

TEST(StateBytes, TheChecksumIsCrc64Xz) {
  EXPECT_EQ(streaming::checksum("123456789", 9),
            0x995dc9bbdf1939faU);  // the catalogue's check value
}

TEST(StateBytes, EveryFormComesBackExactly) {
  for (const Normalizer normalizer :
       {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
    for (const std::int64_t tokens : {0, 1, 2, 5}) {
      const State from_matrix = state_of(file_problem(normalizer), random_mixing(0, 3, 2), tokens);
      const State from_toeplitz = state_of(file_problem(normalizer),
                                           ToeplitzMixing::causal({0.5F, 0.25F}, true), tokens);
      for (const State* state : {&from_matrix, &from_toeplitz}) {
        const State loaded = parse(state->serialize());
        EXPECT_EQ(loaded.serialize(), state->serialize());
        EXPECT_EQ(loaded.problem(), state->problem());
        EXPECT_EQ(loaded.tokens(), tokens);
      }
    }
  }
}

TEST(StateBytes, EverySingleByteChangeIsRefused) {
  const std::string good = small_file();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      expect_corrupt(bad, "[mhla.state.load]");
    }
  }
}

TEST(StateBytes, EveryTruncationIsRefused) {
  const std::string good = small_file();
  for (std::size_t size = 0; size < good.size(); ++size) {
    expect_corrupt(good.substr(0, size), "[mhla.state.load]");
    if (size >= 20) expect_corrupt(resealed(good.substr(0, size)), "[mhla.state.load]");
  }
}

TEST(StateBytes, TrailingBytesAreRefused) {
  expect_corrupt(small_file() + '\0', "checksum");
  const std::string good = small_file();
  expect_corrupt(resealed(good.substr(0, good.size() - 8) + std::string(12, '\0')), "too many");
}

TEST(StateBytes, OtherFilesAndOtherVersionsAreNamed) {
  expect_corrupt("", "truncated");
  expect_corrupt(std::string(64, 'x'), "not a state");
  expect_corrupt(with_number<std::uint32_t>(small_file(), 8, 3), "version 3");
  expect_corrupt(with_number<std::uint32_t>(small_file(), 8, 0), "version 0");
}

TEST(StateBytes, HostileSizesAllocateNothing) {
  const std::string good = small_file();
  const std::size_t mixing = mixing_at(good), tokens = tokens_at(good);
  ASSERT_EQ(with_number<std::int64_t>(good, tokens, 5), good);  // the offsets are right
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_corrupt(with_number<std::uint32_t>(good, 12, 0xffffffffU), "problem");
  expect_corrupt(with_number<std::uint32_t>(good, mixing, 7), "unknown kind 7");
  expect_corrupt(with_number<std::int64_t>(good, mixing + 4, -1), "impossible sizes");
  expect_corrupt(with_number<std::int64_t>(good, mixing + 12, kHuge), "impossible sizes");
  expect_corrupt(with_number<std::int64_t>(good, mixing + 20, 0), "impossible sizes");
  expect_corrupt(with_number<std::int64_t>(good, mixing + 12, 1 << 30), "mixing weights");
  expect_corrupt(with_number<std::int64_t>(good, tokens, -1), "tokens");
  expect_corrupt(with_number<std::int64_t>(good, tokens, kHuge), "rows of the mixing matrix");
  expect_corrupt(with_number<std::int64_t>(good, tokens, 3), "open block");

  const std::string toeplitz = state_of(file_problem(), ToeplitzMixing::causal({1}), 5).serialize();
  const std::size_t at = mixing_at(toeplitz);
  expect_corrupt(with_number<std::uint32_t>(toeplitz, at + 4, 2), "0 or 1");
  expect_corrupt(with_number<std::int64_t>(toeplitz, at + 8, -1), "impossible radius");
  expect_corrupt(with_number<std::int64_t>(toeplitz, at + 8, kHuge), "impossible radius");
  expect_corrupt(with_number<std::int64_t>(toeplitz, at + 16 + 3 * 4, kHuge), "closed block");
}

TEST(StateBytes, ProblemsThatNoStreamHasAreRefused) {
  const std::string good = small_file();
  const std::string text = file_problem().to_string();
  ASSERT_EQ(with_problem(good, text), good);
  const auto expect_bad_problem = [&](const std::string& problem, const std::string& part) {
    SCOPED_TRACE(problem);
    expect_corrupt(with_problem(good, problem), part);
  };
  expect_bad_problem("", "problem");
  expect_bad_problem("nonsense", "problem");
  expect_bad_problem("sequence block ", "problem");
  expect_bad_problem("sequence=nan block=nan dk=2", "problem");
  expect_bad_problem("sequence=10000000 block=1 mask=causal", "not the description of a stream");
  expect_bad_problem("sequence=2 block=2 sequence_k=10000000 block_k=1",
                     "not the description of a stream");
  expect_bad_problem(text + " ", "form it was written in");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  expect_bad_problem(replaced("mask=causal", "mask=none"), "mask");
  expect_bad_problem(replaced("device=cpu", "device=cuda:0"), "device");
  expect_bad_problem(replaced("batch=1", "batch=0"), "batch");
  expect_bad_problem(replaced("batch=1", "batch=4611686018427387904"), "overflow");
  expect_bad_problem(replaced("batch=1", "batch=1000000000"), "closed block");
  expect_bad_problem(replaced("mask=causal", "mask=block_causal"), "whole blocks");
  expect_bad_problem(replaced("dtype=f32", "dtype=f64"), "block");
}

class StateFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("mhla-state-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static void expect_io_error(const std::function<void()>& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  fs::path folder_;
};

// Files may hold 16 bytes while it lives: a write fails in the middle, as on a full disk.
class SmallDisk {
 public:
  SmallDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const ::rlimit limit{.rlim_cur = 16, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  ::rlimit before_{};
};

TEST_F(StateFiles, SaveReplacesTheOldFileAndLeavesNoOther) {
  const State first = state_of(file_problem(), random_mixing(0, 3, 2), 2);
  const State second = state_of(file_problem(), random_mixing(0, 3, 2), 5);
  first.save(path("prompt.mhla-state"));
  second.save(path("prompt.mhla-state"));
  EXPECT_EQ(State::load(path("prompt.mhla-state")).serialize(), second.serialize());
  EXPECT_EQ(files(), 1U);
}

TEST_F(StateFiles, FailedSavesLeaveEverythingAsItWas) {
  const State state = state_of(file_problem(), random_mixing(0, 3, 2), 2);
  expect_io_error([&] { state.save(path("missing/prompt")); }, "cannot create");
  fs::create_directories(path("folder/inside"));
  expect_io_error([&] { state.save(path("folder")); }, "cannot replace");
  {
    const SmallDisk disk;
    expect_io_error([&] { state.save(path("prompt")); }, "cannot write");
  }
  EXPECT_EQ(files(), 1U) << "what was begun is removed";
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_io_error([&] { state.save(path("pipe")); }, "not a regular file");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_EQ(files(), 2U);
}

TEST_F(StateFiles, LoadNamesWhatCannotBeRead) {
  expect_io_error([&] { State::load(path("missing")); }, "missing");
  expect_io_error([&] { State::load(folder_.string()); }, "not a regular file");
  expect_io_error([&] { State::load("/dev/zero"); }, "not a regular file");
}

TEST_F(StateFiles, DamagedFilesAreRefused) {
  std::string bytes = small_file();
  bytes.pop_back();
  std::ofstream(path("short"), std::ios::binary) << bytes;
  std::ofstream(path("empty"), std::ios::binary);
  for (const char* file : {"short", "empty"}) {
    try {
      State::load(path(file));
      ADD_FAILURE() << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << error.what();
    }
  }
}

}  // namespace
}  // namespace mhla::test
