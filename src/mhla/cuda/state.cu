// The engine of streams on a CUDA device: memory, tables of the mixtures, one launch a step.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "mhla/core/half.h"
#include "mhla/core/state_engine.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/state_args.h"

namespace mhla::cuda {
namespace {

using state::MixArgs;
using state::StepArgs;
using streaming::Buffer;
using streaming::Mix;
using streaming::MixItems;
using streaming::Numbers;
using streaming::Setup;
using streaming::Tokens;

constexpr const char* kWhere = "state";
// Summaries that are allocated together: a step in sixteen blocks pays for it.
constexpr std::int64_t kBuffersAtOnce = 16;
constexpr std::int64_t kBytesAtOnce = std::int64_t{256} << 20;

std::shared_ptr<void> device_memory(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  // NOTE: states may outlive the driver at the end of the process; nothing to do then.
  return {device_alloc(std::max<std::size_t>(bytes, 16)), [](void* p) { cudaFree(p); }};
}

class Engine final : public streaming::Engine<float> {
 public:
  explicit Engine(std::shared_ptr<const Setup> setup)
      : setup_(std::move(setup)), device_(setup_->problem.device.index) {
    const Problem& problem = setup_->problem;
    if (const auto reason = device_refuses(problem.device)) {
      fail(ErrorCode::unsupported, kWhere, "device: got ", to_string(problem.device), ", but ",
           *reason, "; states live on CUDA devices or on the CPU");
    }
    const DeviceGuard guard(device_);
    if (problem.dk > state::kWidestKey) {
      fail(ErrorCode::unsupported, kWhere, "dk: streams on a device serve up to ",
           state::kWidestKey, ", got ", problem.dk);
    }
    if (setup_->slices > state::kMostSlices) {
      fail(ErrorCode::unsupported, kWhere, "dv: streams on a device serve up to ",
           state::kMostSlices * 32, ", got ", problem.dv);
    }
    if (setup_->block > 0x7fffffff || setup_->width > 0x7fffffff) {
      fail(ErrorCode::unsupported, kWhere, "blocks of ", setup_->block, " tokens on a device");
    }
    overlap_ = code_version(device_) >= 90;
    shared_bytes_ = shared_memory(device_);
    fill_constants();
    constants_.columns = std::max(16, constants_.slice);
    if (state::step_shared(constants_) > shared_bytes_) {
      fail(ErrorCode::unsupported, kWhere, "dk: a step needs ", state::step_shared(constants_),
           " bytes of shared memory for dk = ", problem.dk, ", this device has ", shared_bytes_);
    }
    // NOTE: four fit every device that there is code for: 87 KB for dk = 512.
    while (constants_.tokens_at_once > 4 && state::tokens_shared(constants_) > shared_bytes_) {
      constants_.tokens_at_once /= 2;
    }
  }

  std::unique_ptr<streaming::Engine<float>> clone() const override {
    auto copy = std::make_unique<Engine>(setup_);
    copy->stream_ = stream_;  // a branch begins behind the last call of its origin
    return copy;
  }

  // Chunk after chunk: the items of a step belong to different slabs and run side by side.
  MixItems mix_items() const override {
    return {.slab = state::kMixSlab,
            .chunk = state::kMixSources,
            .slab_major = false,
            .wide_rows = state::kMixMostRows};
  }

  Buffer allocate(Numbers kind, std::int64_t count) override {
    const std::size_t bytes = bytes_of(kind, count);
    if (count != setup_->size) return device_memory(device_, bytes);
    std::vector<Buffer>& pool = pools_[packs(kind) ? 1 : 0];
    if (pool.empty()) {
      const auto fit = kBytesAtOnce / static_cast<std::int64_t>(std::max<std::size_t>(1, bytes));
      const auto pieces = static_cast<std::size_t>(
          std::clamp<std::int64_t>(fit, 1, kBuffersAtOnce));
      auto memory = device_memory(device_, pieces * bytes);
      for (std::size_t i = 0; i < pieces; ++i) {
        // NOTE: each piece counts its own references; the memory goes with the last of them.
        pool.emplace_back(static_cast<std::byte*>(memory.get()) + i * bytes, [memory](void*) {});
      }
    }
    Buffer buffer = std::move(pool.back());
    pool.pop_back();
    return buffer;
  }
  void clear(Numbers kind, void* data, std::int64_t count) override {
    const DeviceGuard guard(device_);
    check_call(cudaMemsetAsync(data, 0, bytes_of(kind, count), stream()), "cudaMemsetAsync");
  }
  void copy(Numbers kind, void* to, const void* from, std::int64_t count) override {
    transfer(to, from, bytes_of(kind, count), cudaMemcpyDeviceToDevice);
  }
  void upload(Numbers kind, void* to, const float* host, std::int64_t count) override {
    if (!packs(kind)) {
      return transfer(to, host, bytes_of(kind, count), cudaMemcpyHostToDevice);
    }
    std::vector<BFloat16> packed(static_cast<std::size_t>(count));
    for_each_place(count, [&](std::size_t in_file, std::size_t here) {
      packed[here] = to_bfloat16(host[in_file]);
    });
    transfer(to, packed.data(), bytes_of(kind, count), cudaMemcpyHostToDevice);
  }
  void download(Numbers kind, float* host, const void* from, std::int64_t count) override {
    if (!packs(kind)) return fetch(host, from, bytes_of(kind, count));
    std::vector<BFloat16> packed(static_cast<std::size_t>(count));
    fetch(packed.data(), from, bytes_of(kind, count));
    for_each_place(count, [&](std::size_t in_file, std::size_t here) {
      host[in_file] = to_float(packed[here]);
    });
  }
  void store(void* stored, const float* sums, std::int64_t count) override {
    const DeviceGuard guard(device_);
    state::launch_store({.stored = stored, .sums = sums, .count = count}, stream_);
  }
  void use(void* stream) override { stream_ = stream; }

  void run(const Tokens<float>* tokens, std::span<const Share> shares) override {
    const DeviceGuard guard(device_);
    // The items of one launch must belong to one chunk of sources: a share may need several.
    std::vector<MixArgs> first, others;
    for (const Share& share : shares) {
      Mix<float>& mix = *share.mix;
      const MixArgs args = describe(mix);
      for (std::int64_t left = share.items; left > 0;) {
        const std::int64_t slab = mix.done % mix.slabs;
        const std::int64_t count = std::min(left, mix.slabs - slab);
        MixArgs part = args;
        part.chunk = static_cast<int>(mix.done / mix.slabs);
        part.first = static_cast<int>(slab);
        part.count = static_cast<int>(count);
        (left == share.items ? first : others).push_back(part);
        mix.done += count;
        left -= count;
      }
    }
    if (tokens && tokens->count == 1 && setup_->problem.mask == Mask::causal) {
      state::StepCall call{};
      call.step = step_args(*tokens);
      // The longest first: they have the longest way to go.
      std::ranges::stable_sort(first, std::greater<>(), [](const MixArgs& m) { return m.sources; });
      call.mixtures = static_cast<int>(first.size());
      std::ranges::copy(first, call.mix);
      launch_step(storage_, call, overlap_, stream_);
    } else {
      if (tokens) launch_tokens(storage_, token_args(*tokens), stream_);
      for (const MixArgs& part : first) launch_mix(setup_->packed, part, stream_);
    }
    for (const MixArgs& part : others) launch_mix(setup_->packed, part, stream_);
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_); }

  void transfer(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const DeviceGuard guard(device_);
    check_call(cudaMemcpyAsync(to, from, bytes, kind, stream()), "cudaMemcpyAsync");
    // NOTE: a copy from pageable memory has read it when the call returns.
  }
  // From memory that may change at once. NOTE: CUDA waits for the stream before it copies more than
  // 64 KB of pageable memory.
  void send(void* to, const void* host, std::size_t bytes) {
    constexpr std::size_t kPiece = 32 << 10;
    for (std::size_t at = 0; at < bytes; at += kPiece) {
      transfer(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(host) + at,
               std::min(kPiece, bytes - at), cudaMemcpyHostToDevice);
    }
  }
  void fetch(void* host, const void* from, std::size_t bytes) {  // waits
    transfer(host, from, bytes, cudaMemcpyDeviceToHost);
    const DeviceGuard guard(device_);
    check_call(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }
  // f(place in the order of rows, place on the device) of what is packed: a ring or matrices.
  template <typename F>
  void for_each_place(std::int64_t count, F&& f) const {
    if (!constants_.usual || count != setup_->size) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) f(i, i);
      return;
    }
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(count);
         lane += static_cast<std::size_t>(setup_->width)) {
      for (int row = 0; row < state::kUsualKey; ++row) {
        for (int column = 0; column < state::kUsualRow; ++column) {
          f(lane + static_cast<std::size_t>(row * state::kUsualRow + column),
            lane + static_cast<std::size_t>(state::usual_at(row, column)));
        }
      }
    }
  }
  bool packs(Numbers kind) const { return setup_->packed && kind == Numbers::stored; }
  std::size_t bytes_of(Numbers kind, std::int64_t count) const {
    return static_cast<std::size_t>(count) * (packs(kind) ? 2 : 4);
  }

  void fill_constants() {
    const Problem& p = setup_->problem;
    switch (p.dtype) {
      case DType::bf16: storage_ = state::Storage::bf16; break;
      case DType::f16: storage_ = state::Storage::f16; break;
      default: storage_ = state::Storage::f32; break;
    }
    if (setup_->packed) storage_ = state::Storage::packed;
    StepArgs& a = constants_;
    a.packed = setup_->packed ? 1 : 0;
    a.map = feature_map(p.feature_map, p.dtype);
    a.scale = static_cast<float>(p.scale);
    a.eps = static_cast<float>(p.denominator_eps());
    a.heads = static_cast<int>(p.heads);
    a.per_head = p.mixing_per_head ? 1 : 0;
    a.dk = static_cast<int>(p.dk);
    a.dv = static_cast<int>(p.dv);
    a.row = static_cast<int>(setup_->row);
    a.key = static_cast<int>(setup_->key);
    a.den_at = static_cast<int>(setup_->den_at);
    a.den_width = static_cast<int>(setup_->den_width);
    a.width = setup_->width;
    a.open_width = setup_->open_width;
    a.ring_width = setup_->ring_width;
    a.ring_v_at = static_cast<int>(setup_->ring_v_at);
    a.q_at = static_cast<int>(setup_->q_at);
    a.slice = static_cast<int>(setup_->slice);
    a.slices = static_cast<int>(setup_->slices);
    for (int j = 0; j < a.slices; ++j) {
      a.phase[j] = static_cast<unsigned char>(j * state::kFold / a.slices);
    }
    a.block = static_cast<int>(setup_->block);
    switch (p.normalizer) {
      case Normalizer::exact: a.normalizer = 0; break;
      case Normalizer::shared_position: a.normalizer = 1; break;
      case Normalizer::none: a.normalizer = 2; break;
    }
    a.separate = p.separate_denominator ? 1 : 0;
    a.block_causal = p.mask == Mask::block_causal ? 1 : 0;
    a.usual = setup_->packed && p.dk == state::kUsualKey && p.dv == state::kUsualRow &&
                      p.normalizer == Normalizer::none && p.mask == Mask::causal
                  ? 1
                  : 0;
    if (a.usual &&
        (a.row != state::kUsualRow || a.key != state::kUsualKey || a.slice != state::kUsualSlice ||
         a.slices != state::kFold || a.width != state::kUsualKey * state::kUsualRow)) {
      fail(ErrorCode::internal, kWhere, "matrices of ", a.key, " x ", a.row, " in ", a.slices,
           " slices");
    }
    a.tokens_at_once = p.dk <= 128 ? 64 : p.dk <= 256 ? 32 : 16;
  }

  static state::Rows rows(const TensorView& view, std::int64_t first) {
    if (!view.defined()) return {};
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    return {static_cast<std::byte*>(view.data) + first * view.strides[1] * size, view.strides[0],
            view.strides[1], view.strides[2]};
  }

  StepArgs described(const Tokens<float>& tokens) {
    StepArgs a = constants_;
    a.q = rows(tokens.inputs->q, tokens.first);
    a.k = rows(tokens.inputs->k, tokens.first);
    a.v = rows(tokens.inputs->v, tokens.first);
    a.q_den = rows(tokens.inputs->q_den, tokens.first);
    a.k_den = rows(tokens.inputs->k_den, tokens.first);
    a.o = rows(*tokens.o, tokens.first);
    a.running = tokens.running;
    a.summary = tokens.summary;
    a.ring = tokens.ring;
    a.open = tokens.open;
    a.next = tokens.next;
    a.started = tokens.started;
    a.own = tokens.own[0];
    if (tokens.next) a.next_weight = tokens.next_weight[0];
    if (a.per_head) a.weights = head_weights(tokens);
    a.closes = tokens.closes ? 1 : 0;
    a.fill = static_cast<int>(tokens.fill);
    a.base = static_cast<int>(tokens.base);
    a.count = static_cast<int>(tokens.count);
    return a;
  }

  void split_columns(StepArgs& a, int columns) const {
    a.columns = columns;
    a.column_blocks = (a.row + columns - 1) / columns;
    const std::int64_t blocks = setup_->lanes * a.column_blocks;
    if (blocks > 0x3fffffff) fail(ErrorCode::unsupported, kWhere, blocks, " thread blocks");
    a.blocks = static_cast<int>(blocks);
  }

  StepArgs step_args(const Tokens<float>& tokens) {
    StepArgs a = described(tokens);
    // Wide blocks read the ring less often; narrow ones give every multiprocessor something to do.
    // Two of them share one: those of a large batch, as wide as they may be, run all at once.
    constexpr std::int64_t kEnoughBlocks = 132 * 3 / 2;
    const auto too_wide = [&](int columns) {
      a.columns = columns;
      return columns > a.row || state::step_shared(a) > shared_bytes_ ||
             setup_->lanes * ((a.row + columns - 1) / columns) < kEnoughBlocks;
    };
    int columns = 256;
    while (columns > 16 && too_wide(columns)) columns /= 2;
    split_columns(a, std::max(columns, a.slice));  // whole slices: 16 or 32 columns
    // Slices whose turn it is; all of them when the block closes.
    const auto [first, last] = std::equal_range(a.phase, a.phase + a.slices,
                                                (a.fill + 1) % state::kFold);
    a.due_first = a.closes ? 0 : static_cast<int>(first - a.phase);
    a.due_last = a.closes ? a.slices : static_cast<int>(last - a.phase);
    return a;
  }

  StepArgs token_args(const Tokens<float>& tokens) {
    StepArgs a = described(tokens);
    split_columns(a, a.usual ? state::kUsualColumns : state::kChunkColumns);
    return a;
  }

  // m_ii and the next block's weight of every head, uploaded when a block opens.
  const float* head_weights(const Tokens<float>& tokens) {
    const auto heads = static_cast<std::size_t>(setup_->problem.heads);
    std::vector<float> both(2 * heads);
    std::copy_n(tokens.own, heads, both.begin());
    if (tokens.next) std::copy_n(tokens.next_weight, heads, both.begin() + heads);
    if (!head_weights_) head_weights_ = device_memory(device_, both.size() * 4);
    if (both != uploaded_weights_) {
      send(head_weights_.get(), both.data(), both.size() * 4);
      uploaded_weights_ = both;
    }
    return static_cast<const float*>(head_weights_.get());
  }

  // Pointers and weights of a mixture, uploaded once for each.
  struct Table {
    std::uint64_t serial = 0;
    std::size_t capacity = 0;
    std::shared_ptr<void> memory;
  };

  MixArgs describe(const Mix<float>& mix) {
    Table& table = tables_[static_cast<std::size_t>(mix.kind)];
    const std::size_t pointers = mix.from.size() * sizeof(void*);
    const std::size_t bytes = pointers + mix.weights.size() * sizeof(float);
    if (table.capacity < bytes || !table.memory) {
      table.capacity = std::max<std::size_t>(2 * bytes, 4096);
      table.memory = device_memory(device_, table.capacity);
      table.serial = 0;
    }
    if (table.serial != mix.serial) {
      std::vector<std::byte> host(std::max<std::size_t>(bytes, 1));
      if (!mix.from.empty()) {
        std::memcpy(host.data(), mix.from.data(), pointers);
        std::memcpy(host.data() + pointers, mix.weights.data(), bytes - pointers);
      }
      send(table.memory.get(), host.data(), bytes);
      table.serial = mix.serial;
    }
    const auto* data = static_cast<const std::byte*>(table.memory.get());
    MixArgs args{};
    args.from = reinterpret_cast<const void* const*>(data);
    args.weights = reinterpret_cast<const float*>(data + pointers);
    for (std::size_t r = 0; r < mix.to.size(); ++r) args.to[r] = mix.to[r];
    args.start = mix.start;
    args.clear = mix.clear;
    args.add = mix.add ? 1 : 0;
    args.width = setup_->width;
    args.rows = static_cast<int>(mix.to.size());
    args.sources = static_cast<int>(mix.from.size());
    args.slabs_per_lane = static_cast<int>(mix.slabs_per_lane);
    args.heads = constants_.heads;
    args.per_head = constants_.per_head;
    return args;
  }

  std::shared_ptr<const Setup> setup_;
  int device_;
  void* stream_ = nullptr;
  state::Storage storage_ = state::Storage::f32;
  StepArgs constants_{};
  std::vector<Buffer> pools_[2];  // of f32, and of what is packed
  std::shared_ptr<void> head_weights_;
  std::vector<float> uploaded_weights_;
  Table tables_[state::kMixtures];  // one for each kind of mixture
  bool overlap_ = false;            // see launch_step
  int shared_bytes_ = 0;            // of a thread block
};

}  // namespace
}  // namespace mhla::cuda

namespace mhla::streaming {

std::unique_ptr<Engine<float>> make_cuda_engine(const std::shared_ptr<const Setup>& setup) {
  return std::make_unique<cuda::Engine>(setup);
}

}  // namespace mhla::streaming
