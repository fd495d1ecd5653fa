// What the second group of 16 blocks sees of the first, for the causal forward in groups:
//   S~_i = scale sum over j < 16 of m_ij S_j, S_j = phi(k_j)^T v_j.
//
// A thread block holds the same 64 x 64 part of all S_j in 16 slots of shared memory, which the
// mixing turns into the part of S~ in place. Two warpgroups make the even and the odd summaries.
#pragma once

#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

struct FarShared {
  using P = CausalFarPlan;
  std::uint32_t base;

  __device__ __forceinline__ std::uint32_t landed(int i) const { return barrier(i); }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return barrier(P::kStages + i); }
  // What was stored from a slot has left it; slots have been mixed.
  __device__ __forceinline__ std::uint32_t free(int i) const { return barrier(2 * P::kStages + i); }
  __device__ __forceinline__ std::uint32_t mixed() const {
    return barrier(2 * P::kStages + kFarGroup);
  }
  __device__ __forceinline__ std::uint32_t k(int stage) const { return base + stage * P::kStage; }
  __device__ __forceinline__ std::uint32_t v(int stage) const { return k(stage) + kBoxBytes; }
  __device__ __forceinline__ std::uint32_t slot(int i) const {
    return base + P::kSlots + i * P::kSlot;
  }
  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
#pragma unroll
    for (int i = 0; i < P::kStages; ++i) {
      barrier_init(landed(i), 1);
      barrier_init(empty(i), 4 * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i <= kFarGroup; ++i) barrier_init(free(i), 1);  // and `mixed` behind them
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + P::kBarriers + 8 * i;
  }
};

// A part of a pair's summaries: 64 rows of dk, 64 columns of dv.
struct FarItem {
  int item, pair, head, batch, half, box;

  __device__ __forceinline__ FarItem(const CausalFarArgs& args, int number) : item(number) {
    pair = item / kFarParts;
    const int all = args.first_pair + pair;
    batch = all / args.heads;
    head = all - batch * args.heads;
    half = item / (kFarParts / 2) % 2;
    box = item % (kFarParts / 2);
  }
};

__device__ __forceinline__ void copy_far(const CausalFarArgs& args, const FarShared& shared) {
  CausalRing<CausalFarPlan::kStages> ring;
  for (int number = static_cast<int>(blockIdx.x); number < args.items;
       number += static_cast<int>(gridDim.x)) {
    const FarItem item(args, number);
    for (int block = 0; block < kFarGroup; ++block, ring.next()) {
      const std::uint32_t landed = shared.landed(ring.stage);
      barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      arrive_and_expect(landed, CausalFarPlan::kStage);
      copy_box(shared.k(ring.stage), args.k, {item.half * 64, block * kTile, item.head, item.batch},
               landed);
      copy_box(shared.v(ring.stage), args.v, {item.box * 64, block * kTile, item.head, item.batch},
               landed);
    }
  }
}

// Mixing weights times the scale; zero for rows that do not exist.
struct FarWeights {
  const float* at;
  std::int64_t row_stride, column_stride;
  float scale;
  int blocks;

  __device__ __forceinline__ FarWeights(const CausalFarArgs& args, int head)
      : at(args.mixing + head * args.mixing_head_stride),
        row_stride(args.mixing_row_stride),
        column_stride(args.mixing_column_stride),
        scale(args.scale),
        blocks(args.blocks) {}
  __device__ __forceinline__ float one(int row, int column) const {
    return row < blocks ? __ldg(at + row * row_stride + column * column_stride) * scale : 0.f;
  }
  __device__ __forceinline__ std::uint32_t pair(int row, int column) const {
    return ptx::pack_bf16(one(row, column), one(row, column + 1));
  }
};

// All weights of a head as first factors of the products: rows 16 to 31, columns 0 to 15.
struct FarFactors {
  std::uint32_t a[4];

  __device__ __forceinline__ void load(const FarWeights& weights) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      a[e] = weights.pair(kFarGroup + lane / 4 + e % 2 * 8, lane % 4 * 2 + e / 2 * 8);
    }
  }
};

__device__ __forceinline__ void load_slots_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void store_slots(std::uint32_t at, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// All slots become the products with 16 rows of weights. A warp takes chunks of 16 bytes of all
// slots, so that no other warp reads what it writes.
__device__ __forceinline__ void mix_slots(const FarShared& shared, const FarFactors& factors) {
  using P = CausalFarPlan;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  ptx::sync_warps(3, 256);
  std::uint32_t at = shared.slot(lane % 16) + (warp * 2 + lane / 16) * 16;
  constexpr int kBatch = 8;  // chunks on their way at a time
  for (int i = 0; i < kBoxBytes / 16 / 16; i += kBatch, at += 256 * kBatch) {
    std::uint32_t b[kBatch][4];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) load_slots_transposed(b[n], at + 256 * n);
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      float c[2][4] = {};
      ptx::mma_bf16(c[0], factors.a, b[n][0], b[n][1]);
      ptx::mma_bf16(c[1], factors.a, b[n][2], b[n][3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        b[n][e] = ptx::pack_bf16(c[e / 2][e % 2 * 2], c[e / 2][e % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) store_slots(at + 256 * n, b[n]);
  }
  static_assert(P::kSlot % 128 == 16);  // rows of a matrix in different banks
}

template <typename Map>
struct FarCompute {
  using P = CausalFarPlan;
  const CausalFarArgs& args;
  const FarShared& shared;
  const Map& map;
  int warpgroup, lane, row;  // row: of the part, in a slot
  int number;                // summaries so far, those of the other warpgroup too
  unsigned leaving;          // bit i: slot i has been stored since it was written
  unsigned parity;           // bit i: of `free(i)`

  __device__ __forceinline__ FarCompute(const CausalFarArgs& a, const FarShared& s, const Map& m)
      : args(a),
        shared(s),
        map(m),
        warpgroup(static_cast<int>(threadIdx.x / 128)),
        lane(static_cast<int>(threadIdx.x % 32)),
        row(static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane % 16),
        number(warpgroup),
        leaving(0),
        parity(0) {}

  __device__ __forceinline__ void await_slot(int slot) {
    if ((leaving >> slot & 1) == 0) return;
    barrier_wait(shared.free(slot), parity >> slot & 1);
    leaving ^= 1u << slot;
    parity ^= 1u << slot;
  }

  // The summaries of an item to their slots.
  __device__ __forceinline__ void make() {
    for (int block = warpgroup; block < kFarGroup; block += 2, number += 2) {
      const int stage = number % P::kStages;
      barrier_wait(shared.landed(stage), number / P::kStages & 1);
      std::uint32_t a[kTile / 16][4];
      load_columns(a, shared.k(stage));
#pragma unroll
      for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = map(a[i / 4][i % 4]);
      float d[32];
      wgmma_fence();
      wgmma<bf16, 64, true, false>(d, a[0], Box::tokens_inner(shared.v(stage), 0));
#pragma unroll
      for (int i = 1; i < kTile / 16; ++i) {
        wgmma<bf16, 64, true, true>(d, a[i], Box::tokens_inner(shared.v(stage), i));
      }
      wgmma_commit();
      wgmma_wait<0>();
      release_buffer(shared.empty(stage));
      // NOTE: both warpgroups follow all slots, so that they agree which are leaving.
      await_slot(block);
      await_slot(block ^ 1);
      const std::uint32_t slot = shared.slot(block);
#pragma unroll
      for (int g = 0; g < 8; g += 2) store_groups(slot + Box::chunk(row, g + lane / 16), d + g * 4);
    }
  }
  // The slots may be stored.
  __device__ __forceinline__ void pass() {
    fence_async();
    ptx::sync_warps(3, 256);
    if (threadIdx.x == 0) barrier_arrive(shared.mixed());
    leaving = (1u << args.rows_stored) - 1;
  }
  __device__ __forceinline__ void run() {
    FarFactors factors;
    int loaded = -1;  // the mixing head whose weights they are
    for (int at = static_cast<int>(blockIdx.x); at < args.items;
         at += static_cast<int>(gridDim.x)) {
      const FarItem item(args, at);
      const int head = args.mixing_head_stride != 0 ? item.head : 0;
      if (loaded != head) factors.load(FarWeights(args, head));
      loaded = head;
      make();
      mix_slots(shared, factors);
      pass();
    }
  }
};

// Rows of S~ to memory as they are mixed, by one thread: stores wait for one another, and would
// hold up the warps that compute.
struct FarStores {
  const CausalFarArgs& args;
  const FarShared& shared;
  int parity = 0;

  __device__ __forceinline__ void store(const FarItem& item) {
    constexpr int kUnderWay = 3;
    const int count = args.rows_stored;
    barrier_wait(shared.mixed(), parity);
    parity ^= 1;
    unsigned char* to = static_cast<unsigned char*>(args.far) +
                        (static_cast<std::int64_t>(item.pair) * args.rows * kFarParts +
                         item.half * (kFarParts / 2) + item.box) *
                            kBoxBytes;
    for (int i = 0; i < count; ++i, to += kFarParts * kBoxBytes) {
      store_linear(to, shared.slot(i), kBoxBytes);
      store_commit();
      store_wait_read<kUnderWay>();
      if (i >= kUnderWay) barrier_arrive(shared.free(i - kUnderWay));
    }
    store_wait_read();
    for (int i = max(count - kUnderWay, 0); i < count; ++i) barrier_arrive(shared.free(i));
  }
  __device__ __forceinline__ void run() {
    for (int at = static_cast<int>(blockIdx.x); at < args.items;
         at += static_cast<int>(gridDim.x)) {
      store(FarItem(args, at));
    }
    store_wait();
  }
};

__global__ void __launch_bounds__(kFarThreads, 1)
    causal_far(const __grid_constant__ CausalFarArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FarShared shared{ptx::shared_address(memory)};
  if (threadIdx.x == 256) shared.init_barriers();
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;\n");
  if (threadIdx.x >= 256) {
    if (threadIdx.x == 256) copy_far(args, shared);
    if (threadIdx.x == 288) FarStores{args, shared}.run();
    return;
  }
  if (args.feature == Feature::elu1) {
    const auto map = [](std::uint32_t x) { return feature_pair<bf16, Feature::elu1>(x); };
    FarCompute(args, shared, map).run();
  } else {
    const PairMap<bf16> map(args.feature);
    FarCompute(args, shared, map).run();
  }
}

}  // namespace mhla::cuda::sm90
