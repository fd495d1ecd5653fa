// Streams on the emulated multiprocessor against the f64 reference: pieces, steps, branches and
// returns in random order.
//
//   state_emulation [PROBLEM...]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "mhla/core/device_memory.h"
#include "mhla/core/half.h"
#include "mhla/core/implementation.h"
#include "mhla/mhla.h"

namespace {

using namespace mhla;

std::mt19937_64 random_bits(11);
int failures = 0;

// [B, N, H, D] in its own type and in f64.
struct Tensor {
  std::vector<std::int64_t> shape;
  DType dtype;
  std::vector<double> exact;
  std::vector<unsigned char> raw;
  std::size_t begin;  // in raw; now and then rows begin between 16 bytes

  Tensor(const Problem& p, std::int64_t tokens, std::int64_t width)
      : shape{p.batch, tokens, p.heads, width}, dtype(p.dtype) {
    exact.resize(p.batch * tokens * p.heads * width);
    begin = random_bits() % 2 * size_of(dtype);
    raw.assign(begin + exact.size() * size_of(dtype), 0xff);
    std::normal_distribution<float> normal;
    with_dtype(dtype, [&](auto type) {
      using T = decltype(type);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const T value = from_float<T>(normal(random_bits));
        reinterpret_cast<T*>(raw.data() + begin)[i] = value;
        exact[i] = to_float(value);
      }
    });
  }
  TensorView of_tokens(std::int64_t first, std::int64_t count) {
    TensorView view = TensorView::contiguous(
        raw.data() + begin + first * shape[2] * shape[3] * size_of(dtype), dtype,
        {shape[0], count, shape[2], shape[3]}, Device::cuda(0));
    view.strides[0] = shape[1] * shape[2] * shape[3];
    return view;
  }
  TensorView in_f64() {
    return TensorView::of(exact.data(), {shape[0], shape[1], shape[2], shape[3]});
  }
  double error() const {
    double difference = 0, size = 1e-30;
    with_dtype(dtype, [&](auto type) {
      using T = decltype(type);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const double ours = to_float(reinterpret_cast<const T*>(raw.data() + begin)[i]);
        difference += std::pow(ours - exact[i], 2);
        size += exact[i] * exact[i];
      }
    });
    return std::sqrt(difference / size);
  }
};

void check(const std::string& text) {
  const Problem problem = parse_problem(text + " device=cuda:0");
  Problem exact = parse_problem(text);
  exact.dtype = DType::f64;
  const std::int64_t n = problem.layout.tokens(), rows = problem.layout.mixing_size();
  Tensor q(problem, n, problem.dk), k(problem, n, problem.dk), v(problem, n, problem.dv);
  Tensor q_den(problem, n, problem.dk), k_den(problem, n, problem.dk), o(problem, n, problem.dv);
  std::memset(o.raw.data(), 0xff, o.raw.size());
  const std::int64_t heads = problem.mixing_per_head ? problem.heads : 1;
  std::vector<float> weights(heads * rows * rows);
  std::uniform_real_distribution<float> uniform(0.1f, 1.f);
  for (float& w : weights) w = uniform(random_bits);

  const bool separate = problem.separate_denominator;
  ForwardInputs in{.q = q.in_f64(), .k = k.in_f64(), .v = v.in_f64()};
  in.mixing = problem.mixing_per_head ? TensorView::of(weights.data(), {heads, rows, rows})
                                      : TensorView::of(weights.data(), {rows, rows});
  if (separate) in.q_den = q_den.in_f64(), in.k_den = k_den.in_f64();
  forward(plan(exact, {.implementation = "reference"}), in, {.o = o.in_f64()});

  const auto mixing = MixingMatrix::from(weights.data(), problem.mixing_per_head ? heads : 0, rows,
                                         rows);
  State state(problem, mixing);
  const std::int64_t block = state.block_size();
  const std::int64_t unit = problem.mask == Mask::block_causal ? block : 1;
  const auto read = [&](std::int64_t count) {
    const std::int64_t at = state.tokens();
    State::Inputs inputs{
        .q = q.of_tokens(at, count), .k = k.of_tokens(at, count), .v = v.of_tokens(at, count)};
    if (separate)
      inputs.q_den = q_den.of_tokens(at, count), inputs.k_den = k_den.of_tokens(at, count);
    state.prefill(inputs, o.of_tokens(at, count));
  };
  for (int returns = 0, loads = 0; state.tokens() < n;) {
    const std::int64_t left = n - state.tokens();
    const std::uint64_t kind = random_bits() % 12;
    if (kind == 0 && returns < 2) {
      const std::int64_t blocks = state.tokens() / block;
      state.rewind((blocks - static_cast<std::int64_t>(random_bits() % (blocks / 4 + 1))) * block);
      ++returns;
    } else if (kind == 1) {
      state = state.fork();
    } else if (kind == 3 && loads < 3) {
      const std::string bytes = state.serialize();
      state = State::deserialize(bytes.data(), bytes.size());
      ++loads;
      if (state.serialize() != bytes) {
        ++failures;
        std::printf("%s: a loaded state is another\n", text.c_str());
      }
    } else if (kind == 2 || unit > 1) {
      const auto pieces = static_cast<std::int64_t>(random_bits() % (3 * block / unit + 1) + 1);
      read(std::min(left, unit * pieces));
    } else {
      for (std::int64_t i = std::min<std::int64_t>(left, random_bits() % 40); i > 0; --i) read(1);
    }
  }
  const double limit = problem.dtype == DType::f32   ? 2e-5
                       : problem.dtype == DType::f16 ? 3e-3
                                                     : 1.5e-2;
  const bool good = o.error() < limit;  // NaN is not
  if (!good) ++failures;
  std::printf("%s: o %.1e%s\n", text.c_str(), o.error(), good ? "" : " TOO LARGE");
  std::fflush(stdout);
}

// However it was cut into mixtures, a stream that is loaded, or that went back, has the bits of one
// that was not: its outputs and its file after the same steps.
void check_bits(const std::string& text) {
  const Problem problem = parse_problem(text + " device=cuda:0");
  const std::int64_t n = problem.layout.tokens(), rows = problem.layout.mixing_size();
  Tensor q(problem, n, problem.dk), k(problem, n, problem.dk), v(problem, n, problem.dv);
  Tensor o(problem, n, problem.dv);
  std::vector<float> weights(rows * rows);
  std::uniform_real_distribution<float> uniform(0.1f, 1.f);
  for (float& w : weights) w = uniform(random_bits);
  const auto step_to = [&](State& state, std::int64_t end) {
    for (std::int64_t at = state.tokens(); at < end; ++at) {
      state.step(q.of_tokens(at, 1), k.of_tokens(at, 1), v.of_tokens(at, 1), o.of_tokens(at, 1));
    }
    return state.serialize() + std::string(o.raw.begin(), o.raw.end());
  };
  State straight(problem, MixingMatrix::from(weights.data(), 0, rows, rows));
  step_to(straight, n * 2 / 3);
  const std::string middle = straight.serialize();
  State loaded = State::deserialize(middle.data(), middle.size());
  State returned = straight.fork();
  const std::string end = step_to(straight, n);
  step_to(returned, n);
  returned.rewind(n / 2 / straight.block_size() * straight.block_size());
  const bool good = step_to(loaded, n) == end && step_to(returned, n) == end;
  if (!good) ++failures;
  std::printf("%s: loaded and returned %s\n", text.c_str(), good ? "the same" : "OTHER BITS");
  std::fflush(stdout);
}

// However a device keeps a summary, its file has it as that of a processor does.
void check_file(const std::string& text) {
  const Problem problem = parse_problem(text + " device=cuda:0"), on_cpu = parse_problem(text);
  const std::int64_t n = problem.layout.tokens(), rows = problem.layout.mixing_size();
  Tensor q(problem, n, problem.dk), k(problem, n, problem.dk), v(problem, n, problem.dv);
  Tensor o(problem, n, problem.dv);
  const std::vector<float> weights(rows * rows, 1.f);
  const auto summary_of = [&](const Problem& p, std::int64_t at_once) {
    State state(p, MixingMatrix::from(weights.data(), 0, rows, rows));
    while (state.tokens() < n) {
      const auto part = [&](Tensor& x) {
        TensorView view = x.of_tokens(state.tokens(), std::min(at_once, n - state.tokens()));
        view.device = p.device;
        return view;
      };
      state.prefill({.q = part(q), .k = part(k), .v = part(v)}, part(o));
    }
    const std::string bytes = state.serialize();
    std::vector<float> s(problem.batch * problem.heads * problem.dk * problem.dv);
    constexpr std::size_t kChecksum = 8;
    std::memcpy(s.data(), bytes.data() + bytes.size() - kChecksum - s.size() * 4, s.size() * 4);
    return s;
  };
  const std::vector<float> truth = summary_of(on_cpu, n);
  for (const std::int64_t at_once : {std::int64_t{1}, n}) {
    const std::vector<float> ours = summary_of(problem, at_once);
    double difference = 0, size = 1e-30;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      difference += std::pow(ours[i] - truth[i], 2);
      size += std::pow(truth[i], 2);
    }
    const double error = std::sqrt(difference / size);
    const bool good = error < 1e-2;
    if (!good) ++failures;
    std::printf("%s: the file after pieces of %d: %.1e%s\n", text.c_str(),
                static_cast<int>(at_once), error, good ? "" : " TOO LARGE");
  }
  std::fflush(stdout);
}

std::vector<std::string> default_problems() {
  return {
      "sequence=330 block=32 heads=1 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "dtype=bf16",
      // The same heads, so many that a thread block has 32, 64, 128 or all of their columns.
      "sequence=60 block=23 heads=26 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "dtype=bf16",
      "sequence=40 block=33 heads=99 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "feature_map=elu1 dtype=bf16",
      "sequence=60 block=24 heads=50 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "mixing_per_head=true feature_map=elu1 dtype=bf16",
      "sequence=40 block=18 heads=198 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "feature_map=identity dtype=bf16",
      // More tokens of a block than a thread block multiplies at a time.
      "sequence=250 block=100 heads=1 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
      "dtype=bf16",
      "sequence=150 block=7 heads=2 dk=64 dv=64 mask=causal feature_map=elu1 dtype=f16",
      "sequence=150 block=7 heads=3 dk=33 dv=50 mask=causal mixing_per_head=true "
      "normalizer=shared_position feature_map=elu1 dtype=f32",
      "sequence=120 block=5 dk=16 heads=1 dv=300 mask=causal separate_denominator=true eps=0.125 "
      "feature_map=elu1 dtype=f32",
      "sequence=130 block=130 heads=1 dk=40 dv=24 mask=causal feature_map=elu1 dtype=f32",
      "sequence=40 block=1 heads=1 dk=32 dv=32 mask=causal normalizer=shared_position "
      "feature_map=elu1 dtype=f32",
      "sequence=100 block=20 heads=1 dk=300 dv=20 mask=causal feature_map=elu1 dtype=f32",
      // Fewer tokens at a time where there are 99 KB of shared memory (EMULATED_CAPABILITY=86).
      "sequence=100 block=70 heads=1 dk=128 dv=40 mask=causal feature_map=elu1 dtype=f32",
      "sequence=240 block=8 heads=2 dk=48 dv=64 mask=block_causal feature_map=elu1 dtype=f32",
      // Packed: bf16 of wide keys and short blocks; the first above too, the third here is too
      // long.
      "sequence=150 block=24 heads=3 dk=40 dv=50 mask=causal mixing_per_head=true "
      "normalizer=shared_position feature_map=elu1 dtype=bf16",
      "sequence=120 block=19 dk=33 heads=1 dv=300 mask=causal separate_denominator=true eps=0.125 "
      "feature_map=elu1 dtype=bf16",
      "sequence=150 block=130 heads=1 dk=40 dv=24 mask=causal feature_map=elu1 dtype=bf16",
      "sequence=80 block=20 heads=1 dk=300 dv=20 mask=causal feature_map=elu1 dtype=bf16",
      "sequence=120 block=8 heads=2 dk=48 dv=64 mask=block_causal feature_map=elu1 dtype=bf16",
      // Long enough for wide groups.
      "sequence=470 block=2 heads=1 dk=32 dv=16 mask=causal feature_map=elu1 dtype=bf16",
      "sequence=470 block=2 heads=1 dk=16 dv=16 mask=causal feature_map=elu1 dtype=f32",
      "sequence=700 block=3 heads=2 dk=8 dv=16 mask=causal normalizer=none mixing_per_head=true "
      "dtype=f32",
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  for (const std::string& text : given.empty() ? default_problems() : given) check(text);
  if (given.empty()) {
    check_file(
        "sequence=40 block=40 heads=2 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
        "dtype=bf16");
    check_bits("sequence=331 block=2 heads=1 dk=32 dv=32 mask=causal feature_map=elu1 dtype=bf16");
    check_bits("sequence=331 block=2 heads=1 dk=32 dv=32 mask=causal feature_map=elu1 dtype=f32");
    check_bits(
        "sequence=150 block=24 heads=1 dk=128 dv=256 mask=causal normalizer=none scale=0.1 "
        "dtype=bf16");
    check_bits(
        "sequence=200 block=24 heads=2 dk=48 dv=80 mask=causal normalizer=shared_position "
        "feature_map=elu1 dtype=bf16");
  }
  std::printf(failures ? "%d results are wrong\n" : "all results are right\n", failures);
  return failures != 0;
}
