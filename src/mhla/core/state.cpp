// The public class: checks every argument, then hands over to the stream of the right precision.
#include "mhla/state.h"

#include <utility>
#include <variant>

#include "mhla/core/arithmetic.h"
#include "mhla/core/check.h"
#include "mhla/core/state_core.h"
#include "mhla/core/state_file.h"
#include "mhla/core/state_setup.h"
#include "mhla/error.h"

namespace mhla {
namespace {

using streaming::Setup;

void check_views(const char* where, const Problem& problem, const State::Inputs& inputs,
                 const TensorView& o) {
  if (inputs.q.rank != 4) {
    fail(where, "q: expected [B, T, H, dk], got ",
         inputs.q.defined() ? inputs.q.shape_string() : "nothing");
  }
  const std::int64_t tokens = inputs.q.shape[1];
  const auto check_input = [&](const char* label, const TensorView& view, std::int64_t width) {
    check_tensor(where, label, view, problem, tokens, width, Access::read);
    if (tokens > 0 && view.data == o.data) {
      fail(where, "o: starts at the same address as ", label);
    }
  };
  check_input("q", inputs.q, problem.dk);
  check_input("k", inputs.k, problem.dk);
  check_input("v", inputs.v, problem.dv);
  if (problem.separate_denominator) {
    check_input("q_den", inputs.q_den, problem.dk);
    check_input("k_den", inputs.k_den, problem.dk);
  } else if (inputs.q_den.defined() || inputs.k_den.defined()) {
    fail(where, inputs.q_den.defined() ? "q_den" : "k_den",
         ": given, but the problem has separate_denominator = false");
  }
  check_tensor(where, "o", o, problem, tokens, problem.dv, Access::write);
}

// The weights must reach the block of the last token.
void check_reach(const char* where, const Setup& setup, std::int64_t before, std::int64_t tokens) {
  if (tokens == 0) return;
  const std::int64_t last_block = (checked_add(where, before, tokens) - 1) / setup.block;
  const auto limit = setup.max_blocks();
  if (limit && last_block >= *limit) {
    fail(where, "mixing: its ", *limit, " rows serve blocks 0 .. ", *limit - 1, " of ", setup.block,
         " tokens, but token ", before + tokens - 1, " is in block ", last_block,
         "; resample the matrix to more blocks (MixingMatrix::resample) or use a ToeplitzMixing, ",
         "which has no end");
  }
}

}  // namespace

struct State::Impl {
  std::shared_ptr<const Setup> setup;
  streaming::AnyStream stream;

  explicit Impl(std::shared_ptr<const Setup> shared)
      : setup(std::move(shared)), stream(streaming::make_stream(setup)) {}
  Impl(std::shared_ptr<const Setup> shared, streaming::AnyStream loaded)
      : setup(std::move(shared)), stream(std::move(loaded)) {}

  std::int64_t tokens() const {
    return std::visit([](const auto& s) { return s.tokens(); }, stream);
  }
};

State::State(const Problem& problem, const MixingMatrix& mixing)
    : impl_(std::make_unique<Impl>(streaming::make_setup(problem, mixing))) {}

State::State(const Problem& problem, const ToeplitzMixing& mixing)
    : impl_(std::make_unique<Impl>(streaming::make_setup(problem, mixing))) {}

State::State(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;
State::~State() = default;

void State::prefill(const Inputs& inputs, const TensorView& o, mhla::Stream stream) {
  constexpr const char* kWhere = "state.prefill";
  const Setup& setup = *impl_->setup;
  check_views(kWhere, setup.problem, inputs, o);
  const std::int64_t tokens = inputs.q.shape[1];
  if (setup.problem.mask == Mask::block_causal && tokens % setup.block != 0) {
    fail(kWhere, "q: block_causal reads whole blocks of ", setup.block, " tokens, because every ",
         "token sees its whole block; got ", tokens, " tokens");
  }
  check_reach(kWhere, setup, impl_->tokens(), tokens);
  std::visit([&](auto& s) { s.read(inputs, o, stream); }, impl_->stream);
}

void State::prefill(const TensorView& q, const TensorView& k, const TensorView& v,
                    const TensorView& o, mhla::Stream stream) {
  prefill(Inputs{.q = q, .k = k, .v = v}, o, stream);
}

void State::step(const Inputs& inputs, const TensorView& o, mhla::Stream stream) {
  constexpr const char* kWhere = "state.step";
  const Setup& setup = *impl_->setup;
  check_views(kWhere, setup.problem, inputs, o);
  if (inputs.q.shape[1] != 1) {
    fail(kWhere, "q: a step reads one token, got ", inputs.q.shape[1], "; use prefill");
  }
  if (setup.problem.mask == Mask::block_causal && setup.block != 1) {
    fail(kWhere, "mask: block_causal reads whole blocks of ", setup.block,
         " tokens, so single steps need blocks of one token; use prefill");
  }
  check_reach(kWhere, setup, impl_->tokens(), 1);
  std::visit([&](auto& s) { s.read(inputs, o, stream); }, impl_->stream);
}

void State::step(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                 mhla::Stream stream) {
  step(Inputs{.q = q, .k = k, .v = v}, o, stream);
}

State State::fork() const { return State(std::make_unique<Impl>(*impl_)); }

void State::rewind(std::int64_t tokens) {
  constexpr const char* kWhere = "state.rewind";
  const std::int64_t block = impl_->setup->block;
  if (tokens < 0 || tokens > impl_->tokens()) {
    fail(kWhere, "tokens: expected 0 .. ", impl_->tokens(), " (what was read), got ", tokens);
  }
  if (tokens % block != 0) {
    fail(kWhere, "tokens: only block edges can be returned to, got ", tokens, " with blocks of ",
         block, " (the edge before is ", tokens - tokens % block, ")");
  }
  std::visit([&](auto& stream) { stream.rewind_to_block(tokens / block); }, impl_->stream);
}

std::int64_t State::tokens() const { return impl_->tokens(); }
std::int64_t State::block_size() const { return impl_->setup->block; }
const Problem& State::problem() const { return impl_->setup->problem; }

std::size_t State::bytes() const {
  return std::visit([](const auto& stream) { return stream.bytes(); }, impl_->stream);
}

std::string State::serialize() const {
  return std::visit([&](const auto& s) { return streaming::encode(*impl_->setup, s); },
                    impl_->stream);
}

State State::deserialize(const void* data, std::size_t bytes) {
  auto [setup, stream] = streaming::decode(data, bytes);
  return State(std::make_unique<Impl>(std::move(setup), std::move(stream)));
}

void State::save(const std::string& path) const { streaming::write_file(path, serialize()); }

State State::load(const std::string& path) {
  const std::string bytes = streaming::read_file(path);
  return deserialize(bytes.data(), bytes.size());
}

}  // namespace mhla
