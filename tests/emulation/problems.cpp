// The problems that are emulated unasked.
#include "problems.h"

namespace {

std::vector<std::string> dense() {
  return {
      // Whole heads of 129 to 256 tokens: every width, even and uneven blocks, row factors.
      "grid=16x16 block=4x4 heads=5 dk=64 dv=64 dtype=bf16",
      "grid=16x16 block=4x4 heads=5 dk=96 dv=96 dtype=bf16",
      "grid=16x16 block=4x4 heads=5 dk=72 dv=72 normalizer=shared_position dtype=bf16",
      "grid=14x13 blocks=3x4 heads=2 dk=96 dv=88 mask=block_causal feature_map=elu1 dtype=bf16",
      "sequence=200 block=19 heads=3 dk=32 dv=32 normalizer=none feature_map=relu dtype=bf16",
      // Tiles: every width, masks, packed sequences, rows that are not whole 16-byte chunks.
      "sequence=300 block=40 heads=1 dk=64 dv=64 mask=causal dtype=f16",
      "sequence=300 block=40 heads=1 dk=72 dv=72 mask=block_causal normalizer=none "
      "feature_map=identity dtype=bf16",
      "sequence=130 block=80 heads=2 dk=96 dv=96 mixing_per_head=true dtype=bf16",
      "sequence=100+32+7 block=16 batch=2 heads=1 dk=128 dv=72 feature_map=elu1 dtype=bf16",
      "sequence=280 block=5 heads=1 dk=32 dv=24 dtype=bf16",
      "grid=5x6 blocks=2x2 heads=2 dk=33 dv=65 dtype=bf16 gap=3",
  };
}

std::vector<std::string> dense_more() {
  return {
      "grid=16x16 block=4x4 heads=2 batch=3 dk=72 dv=72 dtype=f16",
      "grid=16x16 block=4x4 heads=5 dk=64 dv=64 normalizer=shared_position dtype=f16",
      "grid=16x16 block=4x4 heads=3 dk=64 dv=64 normalizer=shared_position dtype=bf16",
      "grid=14x14 blocks=4x4 heads=5 dk=64 dv=64 mask=block_causal dtype=f16",
      "grid=14x14 blocks=4x4 heads=5 dk=96 dv=96 dtype=f16",
      "grid=14x14 blocks=4x4 heads=3 dk=80 dv=96 normalizer=shared_position dtype=f16",
      "grid=16x16 block=4x4 heads=3 dk=73 dv=73 dtype=bf16",
      "grid=16x16 block=4x4 heads=2 dk=32 dv=32 dtype=f16",
      "sequence=70 block=24 heads=2 dk=32 dv=32 scale=0.3 dtype=f16",
      "sequence=130 block=80 heads=2 dk=96 dv=96 mask=causal dtype=f16",
      "sequence=130 block=80 heads=2 dk=128 dv=128 dtype=f16",
      "sequence=300 block=40 heads=1 dk=72 dv=72 dtype=f16",
      "grid=5x6x7 block=2x3x4 heads=2 dk=64 dv=64 dtype=bf16 gap=8",
  };
}

std::vector<std::string> causal() {
  const std::string form = " mask=causal normalizer=none scale=0.1 dtype=bf16";
  return {"sequence=300 block=64 heads=2 dk=128 dv=256" + form,
          "sequence=300 block=128 heads=1 dk=64 dv=128" + form};
}
std::vector<std::string> causal_more() {
  const std::string form = " mask=causal normalizer=none scale=0.1 dtype=bf16";
  return {"sequence=1850 block=64 heads=1 dk=128 dv=256" + form,  // causal_far
          "sequence=500 block=128 batch=2 heads=3 dk=128 dv=128" + form,
          "sequence=64 block=64 heads=1 dk=40 dv=72" + form};
}

std::vector<std::string> columns() {
  const std::string form = " mask=causal normalizer=none scale=0.1 dtype=bf16";
  return {
      "sequence=1100 block=64 heads=1 dk=128 dv=64" + form,
      "sequence=600 block=64 batch=3 heads=2 dk=80 dv=100" + form};  // several parts a thread block
}
std::vector<std::string> columns_more() {
  const std::string form = " mask=causal normalizer=none scale=0.1 dtype=bf16";
  std::vector<std::string> all;
  for (const int tokens : {1, 64, 128, 190, 500, 513, 640, 1024, 1030, 1537, 1800, 2048}) {
    all.push_back("sequence=" + std::to_string(tokens) + " block=64 heads=1 dk=128 dv=128" + form);
  }
  all.push_back("sequence=200 block=64 batch=4 heads=3 dk=128 dv=256" + form);  // many pairs
  all.push_back("sequence=520 block=64 batch=6 heads=1 dk=128 dv=64" + form);   // 8 n + 1 blocks
  for (const std::string feature_map : {"relu", "elu1", "identity"}) {
    all.push_back("sequence=1300 block=64 heads=2 dk=128 dv=256 feature_map=" + feature_map + form);
  }
  all.push_back("sequence=1700 block=64 batch=2 heads=3 dk=100 dv=72 mixing_per_head=true" + form);
  all.push_back("sequence=710 block=64 heads=2 dk=72 dv=40" + form + " gap=3");
  return all;
}

std::vector<std::string> fused() {
  return {"grid=16x16 block=8x8 heads=3 dk=64 dv=64 dtype=bf16",
          "grid=32x24 block=8x8 heads=1 dk=32 dv=32 normalizer=shared_position dtype=bf16",
          "grid=16x24 block=8x8 heads=3 dk=96 dv=96 dtype=bf16",
          // Query blocks without keys of their own, several heads a cluster.
          "sequence=256 block=64 sequence_k=64 block_k=64 batch=6 heads=3 dk=32 dv=32 dtype=bf16"};
}
std::vector<std::string> fused_more() {
  return {"grid=32x32 block=8x8 heads=2 dk=64 dv=64 normalizer=none dtype=bf16",
          "grid=32x32 block=8x8 heads=2 batch=2 dk=32 dv=32 feature_map=elu1 dtype=bf16",
          "grid=32x32 block=8x8 heads=2 batch=2 dk=96 dv=96 mixing_per_head=true dtype=bf16",
          "sequence=832 block=64 heads=3 dk=96 dv=96 normalizer=none feature_map=elu1 dtype=bf16",
          "grid=24x16 block=8x8 heads=3 dk=96 dv=96 normalizer=shared_position dtype=bf16",
          "grid=16x16 block=8x8 heads=1 dk=96 dv=96 dtype=bf16 gap=3",
          "grid=16x16 block=4x4 heads=2 dk=64 dv=64 dtype=bf16"};
}

std::vector<std::string> linear() {
  return {"grid=16x16 block=4x4 heads=2 dk=64 dv=64 dtype=bf16",
          "grid=24x16 block=8x8 heads=2 dk=64 dv=64 normalizer=shared_position dtype=bf16",
          "grid=20x18 block=8x8 heads=2 dk=32 dv=32 dtype=bf16",
          "sequence=150 block=64 heads=1 dk=128 dv=256 scale=0.1 mask=causal normalizer=none "
          "dtype=bf16",
          "sequence=70 block=24 heads=2 dk=32 dv=32 scale=0.3 mask=causal "
          "separate_denominator=true dtype=bf16",
          // Tiles and slabs of 17 to 64 blocks, of one slice and of several, and of more blocks.
          "grid=40x40 block=8x8 heads=2 dk=32 dv=32 dtype=bf16",
          "grid=48x32 block=16x4 heads=1 dk=64 dv=64 dtype=bf16",
          "grid=3x20x20 block=1x5x10 heads=1 dk=128 dv=128 dtype=bf16",
          "sequence=970 block=10 heads=1 dk=32 dv=32 dtype=bf16"};
}
std::vector<std::string> linear_more() {
  std::vector<std::string> all;
  for (const std::string type : {" dtype=bf16", " dtype=f16", " dtype=f32"}) {
    for (const std::string normalizer : {"exact", "shared_position", "none"}) {
      for (const std::string mask : {"none", "causal", "block_causal"}) {
        for (const std::string separate : {"false", "true"}) {
          if (normalizer == "none" && separate == "true") continue;
          all.push_back("sequence=70 block=24 heads=2 dk=32 dv=32 scale=0.3 normalizer=" +
                        normalizer + " mask=" + mask + " separate_denominator=" + separate + type);
        }
      }
    }
    for (const int d : {8, 33, 64, 72, 96, 128, 200}) {
      const std::string width = " heads=1 dk=" + std::to_string(d) + type;
      all.push_back("sequence=210 block=80 dv=" + std::to_string(d) + width);
      all.push_back("sequence=70 block=40 dv=40 mask=causal normalizer=none" + width);
    }
    for (const std::string text :
         {"sequence=100 block=70 heads=1 dk=32 dv=70 mask=causal normalizer=none",
          "grid=5x6x7 block=2x3x4 heads=2 dk=64 dv=64 normalizer=shared_position feature_map=elu1",
          "sequence=100+32+7 block=16 heads=2 dk=32 dv=64 mixing_per_head=true mask=causal",
          "sequence=100+32+7 block=16 batch=2 heads=2 dk=32 dv=70",
          "sequence=600 block=16 heads=1 dk=32 dv=32", "sequence=1500 block=10 heads=1 dk=32 dv=32",
          "sequence=150 block=64 heads=1 dk=128 dv=256 scale=0.1 mask=causal normalizer=none"}) {
      all.push_back(text + type);
    }
    all.push_back("grid=5x6x7 blocks=2x2x2 heads=2 dk=64 dv=64 feature_map=relu" + type + " gap=8");
    all.push_back("grid=5x6 blocks=2x2 heads=2 dk=64 dv=64 feature_map=elu1" + type + " gap=3");
  }
  return all;
}

}  // namespace

std::vector<std::string> problems(const std::string& implementation, bool few) {
  static const struct {
    const char* name;
    std::vector<std::string> (*few)();
    std::vector<std::string> (*more)();
  } kLists[] = {{"cuda.dense", dense, dense_more},
                {"cuda.causal", causal, causal_more},
                {"cuda.columns", columns, columns_more},
                {"cuda.fused", fused, fused_more},
                {"cuda.linear", linear, linear_more}};
  std::vector<std::string> all;
  for (const auto& list : kLists) {
    if (implementation != list.name) continue;
    all = list.few();
    if (few) continue;
    for (const std::string& text : list.more()) all.push_back(text);
  }
  return all;
}
