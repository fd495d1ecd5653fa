// Writes the seeds the fuzzers start from: a few problems, one state of every form, checkpoints,
// pictures, packed files, configurations, logs, data sets.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "io/image.h"
#include "mhla/error.h"
#include "mhla/state.h"
#include "support/packed_file.h"
#include "support/torch_file.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& folder, const std::string& bytes) {
  static int counter = 0;
  fs::create_directories(folder);
  std::ofstream(folder / std::to_string(counter++), std::ios::binary) << bytes;
}

void write_problems(const fs::path& folder) {
  for (const char* text : {
           "grid=4x6 block=2x3 batch=2 heads=3 dk=4",
           "grid=3x4x5 blocks=1x2x2 dk=8 dv=4 dtype=bf16 device=cuda:1",
           "grid=4x4+6x6 blocks=2x2 mask=block_causal normalizer=shared_position eps=1e-6",
           "sequence=100+0+32 block=64 mask=causal normalizer=none feature_map=relu scale=0.125",
           "sequence=10 blocks=3 mixing_per_head=true separate_denominator=true dtype=f64",
           "sequence=10 block=4 sequence_k=7 blocks_k=2 feature_map=identity dtype=f16",
           "grid=8x8 block=3x3 grid_k=2x9 block_k=2x2 feature_map=elu1",
       }) {
    write(folder, text);
  }
}

void write_states(const fs::path& folder, const mhla::Problem& p) {
  const auto toeplitz = mhla::ToeplitzMixing::causal({0.5F, 0.25F}, true);
  const auto matrix = mhla::MixingMatrix::constant(3, 3, 0.25F);
  const auto mixing = p.mixing_per_head ? matrix.repeated_per_head(p.heads) : matrix;
  std::vector<mhla::State> states;
  states.emplace_back(p, mixing);
  if (!p.mixing_per_head) states.emplace_back(p, toeplitz);
  for (mhla::State& state : states) {
    write(folder, state.serialize());
    const std::int64_t tokens = p.mask == mhla::Mask::causal ? 5 : 4;
    std::vector<double> values(tokens * p.heads * p.dk), out(tokens * p.heads * p.dv);
    const auto view = [&](std::vector<double>& data, std::int64_t width) {
      return mhla::TensorView::contiguous(data.data(), p.dtype, {1, tokens, p.heads, width});
    };
    const mhla::TensorView q = view(values, p.dk);
    mhla::State::Inputs in{.q = q, .k = q, .v = view(values, p.dv)};
    if (p.separate_denominator) in.q_den = in.k_den = q;
    state.prefill(in, view(out, p.dv));
    write(folder, state.serialize());
  }
}

void write_states(const fs::path& folder) {
  using mhla::Mask, mhla::Normalizer, mhla::DType;
  for (const Mask mask : {Mask::causal, Mask::block_causal}) {
    for (const auto normalizer :
         {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
      for (const bool variant : {false, true}) {
        write_states(folder, {.heads = 2,
                              .dk = 2,
                              .dv = 1,
                              .layout = mhla::BlockLayout::sequence(2, {.block = {2}}),
                              .mask = mask,
                              .normalizer = normalizer,
                              .separate_denominator = variant && normalizer != Normalizer::none,
                              .mixing_per_head = variant,
                              .dtype = variant ? DType::f64 : DType::bf16});
      }
    }
  }
}

void write_safetensors(const fs::path& folder) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)"
      R"("b":{"dtype":"BF16","shape":[16],"data_offsets":[32,64]},)"
      R"("empty":{"dtype":"BOOL","shape":[0,3],"data_offsets":[64,64]}})";
  write(folder, header);  // the fuzzer adds the length and 64 bytes
  write(folder, mhla::test::little(static_cast<std::uint64_t>(header.size())) + header +
                    std::string(64, 'x'));
  write(folder, R"({"metadata":{"total_size":64},"weight_map":{"a":"one.safetensors","b":"two"}})");
}

void write_torch_files(const fs::path& folder) {
  namespace p = mhla::test::pickled;
  const std::string storage = p::storage("FloatStorage", "0", 16);
  const std::string nested = p::dict(
      {{"model", p::dict({{"w", p::tensor(storage, 0, {2, 3}, {3, 1})},
                          {"v", p::tensor(storage, 4, {3, 2}, {1, 3})}})},
       {"ema", p::global("collections", "OrderedDict") + ")R" + p::text("w") +
                   p::tensor(storage, 15, {}, {}) + "s}b"},
       {"args", p::global("argparse", "Namespace") + ")\x81" +
                    p::dict({{"lr", "G" + std::string(8, '\x3f')}}) + "b"},
       {"list", p::tuple({p::integer(1), "\x88", "N"})}});
  const std::string dtype = p::global("torch", "uint16");
  const std::string untyped = p::tuple({p::text("storage"),
                                        p::global("torch.storage", "UntypedStorage"), p::text("0"),
                                        p::text("cpu"), p::integer(64)}) +
                              "Q";
  const std::string third = p::global("torch._utils", "_rebuild_tensor_v3") +
                            p::tuple({untyped, p::integer(0), p::integers({8}), p::integers({1}),
                                      "\x89", "N", dtype}) +
                            "R";
  for (const std::string& value :
       {nested, third, p::dict({{"x", third + "q" + std::string(1, '\0')}})}) {
    write(folder, "\x80\x02" + value + ".");  // the fuzzer packs it
    for (const bool in64 : {false, true}) {
      write(folder,
            mhla::test::torch_file(value, {{"archive/data/0", std::string(64, 'x')}}, in64));
    }
  }
}

void write_pictures(const fs::path& folder) {
  mhla::io::Image image(19, 11);
  for (std::size_t i = 0; i < image.pixels().size(); ++i) {
    image.pixels()[i] = static_cast<std::uint8_t>(i * i / 7);
  }
  write(folder, mhla::io::encode_png(image.view()));
  for (const int quality : {5, 90}) write(folder, mhla::io::encode_jpeg(image.view(), quality));
}

void write_packed(const fs::path& folder) {
  write(folder, mhla::test::kGz);
  write(folder, mhla::test::kXz);
  write(folder,
        mhla::test::tar_entry("train/", "", '5') + mhla::test::tar_entry("train/a.png", "picture") +
            mhla::test::tar_entry("././@LongLink", std::string(120, 'n'), 'L') +
            mhla::test::tar_entry("n", "x") + mhla::test::tar_entry("pax", "9 path=a\n", 'x') +
            mhla::test::tar_entry("m", "y") + std::string(1024, '\0'));
}

void write_configs(const fs::path& folder) {
  for (const char* text : {
           "model: {name: deit-t, blocks: [4, 4]}\ntrain:\n  lr: 1e-3\n  note: \"a: 'b' #c\\n\"\n",
           "a: &a {x: 1, y: -2}\nb: {c: *a, d: [*a]}\n",
           "model.attention.preset: paper\n---\nempty: ~\n",
           "data.mean=[0.485, nan, inf]",
       }) {
    write(folder, text);
  }
}

void write_logs(const fs::path& folder) {
  write(folder,
        R"({"kind":"train","step":3,"epoch":0.5,"loss":2.25,"lr":8e-05,"samples_per_second":21.5})"
        "\n"
        R"({"kind":"eval","step":3,"epoch":0.5,"top1":10.0,"loss":1e308})"
        "\n{\"kind\":\"tra");
}

void write_data_sets(const fs::path& folder) {
  using std::string_literals::operator""s;
  const std::string labels = "\0\0\x08\x01\0\0\0\x02\x01\x09"s;
  const std::string images = "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03"s + std::string(12, 'x');
  write(folder, std::string(1, static_cast<char>(3 * labels.size())) + labels + images);
  write(folder, "\x01\x03\x09" + std::string(3072, 'p'));
  const std::string png = mhla::io::encode_png(mhla::io::Image(4, 3).view());
  write(folder, "\x02" + mhla::test::tar_entry("train/a/1.png", png) +
                    mhla::test::tar_entry("train/b/2.jpg", "broken") + std::string(1024, '\0'));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_seeds FOLDER\n";
    return 2;
  }
  try {
    write_problems(fs::path(argv[1]) / "problem_fuzz");
    write_states(fs::path(argv[1]) / "state_file_fuzz");
    write_safetensors(fs::path(argv[1]) / "safetensors_fuzz");
    write_torch_files(fs::path(argv[1]) / "torch_file_fuzz");
    write_pictures(fs::path(argv[1]) / "image_fuzz");
    write_packed(fs::path(argv[1]) / "packed_fuzz");
    write_configs(fs::path(argv[1]) / "config_fuzz");
    write_logs(fs::path(argv[1]) / "run_log_fuzz");
    write_data_sets(fs::path(argv[1]) / "data_set_fuzz");
  } catch (const std::exception& error) {
    std::cerr << "make_seeds: error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
