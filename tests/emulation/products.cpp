// Products on the tensor cores: mma of a warp, wgmma of a warpgroup.
#include <algorithm>

#include "emulator.h"
#include "instructions.h"

namespace emulator {
namespace {

// a: 16 x k of a warp, its lanes in a row of slots; words 0 to 3 of a slot are fragment a.
float element_a(const LaneSlot* lanes, Format format, int m, int k) {
  if (format == tf32) {
    return from_bits(tf32, lanes[m % 8 * 4 + k % 4].word[m / 8 + k / 4 * 2]);
  }
  const std::uint32_t word = lanes[m % 8 * 4 + k % 8 / 2].word[m / 8 + k / 8 * 2];
  return from_bits(format, k % 2 ? word >> 16 : word & 0xffff);
}
float element_b(const LaneSlot* lanes, Format format, int k, int n) {
  if (format == tf32) return from_bits(tf32, lanes[n * 4 + k % 4].word[4 + k / 4]);
  const std::uint32_t word = lanes[n * 4 + k % 8 / 2].word[4 + k / 8];
  return from_bits(format, k % 2 ? word >> 16 : word & 0xffff);
}

void multiply(const Instruction& in, Frame& frame) {
  LaneSlot& mine = slot(in.name.c_str());
  const auto &a = in.arguments[1].items, &b = in.arguments[2].items;
  const std::size_t halves = in.k == 8 && in.format != tf32 ? 1 : 2;  // of a fragment
  if (a.size() != 2 * halves || b.size() != halves) stop(in.name + ": a wrong number of operands");
  for (std::size_t i = 0; i < a.size(); ++i) {
    mine.word[i] = static_cast<std::uint32_t>(frame.read(a[i]));
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    mine.word[4 + i] = static_cast<std::uint32_t>(frame.read(b[i]));
  }
  const LaneSlot* lanes = meet();
  const Format format = Format(in.format);
  for (int e = 0; e < 4; ++e) {
    const int m = lane() / 4 + e / 2 * 8, n = lane() % 4 * 2 + e % 2;
    double sum = frame.read_float(in.arguments[3].items[e]);
    for (int k = 0; k < in.k; ++k) {
      sum += static_cast<double>(element_a(lanes, format, m, k)) * element_b(lanes, format, k, n);
    }
    frame.write(in.arguments[0].items[e], bits_to<std::uint32_t>(static_cast<float>(sum)));
  }
}

// An operand in shared memory, as its descriptor says: rows of `size` along m or n, depth along k.
class SharedOperand {
 public:
  SharedOperand(const Block& block, std::uint64_t descriptor) : block_(block) {
    start_ = (descriptor & 0x3fff) << 4;
    leading_ = (descriptor >> 16 & 0x3fff) << 4;
    stride_ = (descriptor >> 32 & 0x3fff) << 4;
    static constexpr int kRows[] = {0, 128, 64, 32};
    row_ = kRows[descriptor >> 62];
    if (descriptor >> 49 & 7) stop("wgmma: a base offset is not emulated");
  }
  // Core matrices are 8 rows of 16 bytes. inner: k is contiguous, otherwise m or n is.
  void read(float* to, int size, int k_size, Format format, bool inner) const {
    const int width = format == tf32 ? 4 : 8;  // elements of 16 bytes
    if (inner) {
      for (int row = 0; row < size; ++row) {
        for (int k = 0; k < k_size; k += width) {
          std::uint64_t at = start_ + row / 8 * stride_;
          at += row_ == 0 ? row % 8 * 16 + k / width * leading_
                          : static_cast<std::uint64_t>(row % 8 * row_ + k / width * 16);
          chunk(at, format, width, to + k * size + row, size);
        }
      }
    } else {
      for (int k = 0; k < k_size; ++k) {
        for (int row = 0; row < size; row += width) {
          std::uint64_t at = start_;
          if (row_ == 0) {
            at += row / 8 * stride_ + k / 8 * leading_ + k % 8 * 16;
          } else {
            const int across = row_ / 2;  // elements of a row
            at += row / across * leading_ + row % across * 2 + k / 8 * stride_ + k % 8 * row_;
          }
          chunk(at, format, width, to + k * size + row, 1);
        }
      }
    }
  }

 private:
  void chunk(std::uint64_t at, Format format, int width, float* to, int step) const {
    const std::uint64_t place = swizzled(at & 0x3ffff, row_);
    const int end = kReserved + block_.static_bytes + block_.dynamic_bytes;
    if (place < kReserved || place + 16 > static_cast<unsigned>(end)) {
      stop("wgmma reads at " + std::to_string(static_cast<int>(place) - kReserved) + " of " +
           std::to_string(end - kReserved) + " bytes of shared memory");
    }
    check_fenced(block_, block_.memory + place, 16, "wgmma");
    for (int i = 0; i < width; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, block_.memory + place + i * (16 / width), 16 / width);
      if (format == tf32) bits &= ~0x1fffu;
      to[i * step] = from_bits(format, bits);
    }
  }

  const Block& block_;
  std::uint64_t start_, leading_, stride_;
  int row_;
};

// {d}, {a} or a, b, p, scale, scale[, transposed a][, transposed b]
void issue(const Instruction& in, Frame& frame) {
  Warpgroup& group = current->block->warpgroups[current->thread / 128];
  const auto position = static_cast<std::size_t>(current->products_issued++ - group.done);
  if (position > group.products.size()) stop("wgmma: a warpgroup out of step");
  if (position == group.products.size()) group.products.push_back(new Product);
  Product& product = *group.products[position];
  const int t = current->thread % 128;
  const bool from_shared = in.arguments[1].kind != Argument::list;
  const std::uint64_t a = from_shared ? frame.read(in.arguments[1]) : 0;
  const std::uint64_t b = frame.read(in.arguments[2]);
  const bool accumulate = frame.read(in.arguments[3]) != 0;
  if (product.arrived == 0) {
    product.instruction = &in;
    product.block = current->block;
    product.accumulate = accumulate;
    product.a_descriptor = a;
    product.b_descriptor = b;
    product.d.resize(128 * static_cast<std::size_t>(in.n / 2));
    for (std::size_t i = 0; i < 2; ++i) {
      if (static_cast<int>(frame.read(in.arguments[4 + i])) != 1) stop("wgmma: a negated operand");
    }
    const std::size_t b_order = from_shared ? 7 : 6;
    product.a_transposed = from_shared && in.arguments.size() > 6 &&
                           frame.read(in.arguments[6]) != 0;
    product.b_transposed = in.arguments.size() > b_order && frame.read(in.arguments[b_order]) != 0;
  } else if (product.instruction->name != in.name || product.accumulate != accumulate ||
             product.a_descriptor != a || product.b_descriptor != b) {
    stop("wgmma: threads of a warpgroup disagree on " + in.name);
  }
  for (int i = 0; !from_shared && i < 4; ++i) {
    product.a[t][i] = static_cast<std::uint32_t>(frame.read(in.arguments[1].items[i]));
  }
  const auto& items = in.arguments[0].items;
  if (static_cast<int>(items.size()) != in.n / 2) stop(in.name + ": a wrong number of sums");
  for (std::size_t i = 0; i < items.size(); ++i) {
    product.d[static_cast<std::size_t>(t) * items.size() + i] = frame.operands[items[i].index].to;
  }
  if (++product.arrived == 128) products_ready(group);
}
void commit(const Instruction&, Frame&) {
  current->product_groups.push_back(current->products_issued);
}
void wait(const Instruction& in, Frame& frame) {
  const std::uint64_t pending = frame.read(in.arguments[0]);
  auto& groups = current->product_groups;
  while (groups.size() > pending) {
    wait_for({.kind = Wait::products, .count = groups.front()});
    groups.erase(groups.begin());
  }
}
void fence(const Instruction&, Frame&) {}

}  // namespace

void execute(Product& product) {
  const Instruction& in = *product.instruction;
  const Format format = Format(in.format);
  const int n = in.n, k_size = in.k;
  static float a[16 * 64], b[16 * 256], d[64 * 256];  // [k][m], [k][n], [m][n]
  SharedOperand(*product.block, product.b_descriptor)
      .read(b, n, k_size, format, !product.b_transposed);
  if (product.instruction->arguments[1].kind == Argument::list) {
    LaneSlot lanes[32];
    for (int warp = 0; warp < 4; ++warp) {
      for (int lane = 0; lane < 32; ++lane) {
        std::copy_n(product.a[warp * 32 + lane], 4, lanes[lane].word);
      }
      for (int m = 0; m < 16; ++m) {
        for (int k = 0; k < k_size; ++k) {
          a[k * 64 + warp * 16 + m] = element_a(lanes, format, m, k);
        }
      }
    }
  } else {
    SharedOperand(*product.block, product.a_descriptor)
        .read(a, 64, k_size, format, !product.a_transposed);
  }
  const auto each = [&](auto&& f) {
    for (int t = 0; t < 128; ++t) {
      for (int i = 0; i < n / 2; ++i) {
        const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + t % 4 * 2 + i % 2;
        f(d[row * n + column], static_cast<float*>(product.d[t * (n / 2) + i]));
      }
    }
  };
  if (product.accumulate) each([](float& sum, const float* from) { sum = *from; });
  else std::fill_n(d, 64 * n, 0.f);
  for (int m = 0; m < 64; ++m) {
    for (int k = 0; k < k_size; ++k) {
      const float x = a[k * 64 + m];
      for (int j = 0; j < n; ++j) d[m * n + j] += x * b[k * n + j];
    }
  }
  each([](const float& sum, float* to) { *to = sum; });
}

bool decode_products(Instruction& in) {
  if (starts(in, "wgmma.fence")) in.handler = fence;
  else if (starts(in, "wgmma.commit_group")) in.handler = commit;
  else if (starts(in, "wgmma.wait_group")) in.handler = wait;
  else if (starts(in, "wgmma.mma_async.sync.aligned.m64n")) in.handler = issue;
  else if (starts(in, "mma.sync.aligned.m16n8k")) in.handler = multiply;
  else return false;
  in.format = in.has("bf16") ? bf16 : in.has("tf32") ? tf32 : f16;
  if (const auto at = in.name.find(".m64n"); at != std::string::npos) {
    in.n = std::atoi(in.name.c_str() + at + 5);
    in.k = in.format == tf32 ? 8 : 16;
  } else {
    in.n = 8;
    in.k = in.has("m16n8k8") ? 8 : 16;
  }
  return true;
}

}  // namespace emulator
