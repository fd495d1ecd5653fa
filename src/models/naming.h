// How other packages store a network's tensors: one list for reading and for writing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mhla::models {

using StateDict = std::map<std::string, at::Tensor>;

// Names are patterns: `*` is the number of a layer, a dot at the end stands for weight and bias.
struct Naming {
  struct Part {
    std::string ours;
    // Several: one after another along the first axis, as q, k and v in qkv. With a `*` that `ours`
    // lacks: every layer holds the same.
    std::vector<std::string> theirs;
  };
  std::string package;    // what people type: "diffusers"
  std::string network;    // "diffusers' Wan"
  std::string sign = {};  // a part of a name that tells its checkpoints from ours
  std::vector<Part> parts = {};
  std::vector<std::string> computed = {};  // parts of their names that are computed here: not read
  std::int64_t layers = 0;                 // for what every layer holds
  // Where its network is another: the same tensors would give other results.
  std::string differs = {};
  std::vector<std::string> remarks = {};  // what to know when loading the file there
  std::string config = {};                // config.json of its folders; empty: it has none

  // Parts that have the same name there.
  Naming& same(const std::vector<std::string>& patterns);
};

// Their tensors under our names; what no part names stays as it is. `notes` says what was done.
StateDict read_as(const Naming& naming, StateDict theirs, std::vector<std::string>& notes);

// Our tensors under their names. `without_place` gets our names of those that the package lacks.
StateDict write_as(const Naming& naming, const StateDict& ours,
                   std::vector<std::string>& without_place);

bool any_contains(const StateDict& tensors, const std::string& part);
void drop_containing(StateDict& tensors, const std::string& part);
// A name that begins with `from` begins with `to`.
void rename_prefix(StateDict& tensors, const std::string& from, const std::string& to);

// `key: value` lines of a config.json.
class ConfigText {
 public:
  ConfigText& add(const char* key, const std::string& value);
  ConfigText& add(const char* key, const char* value) { return add(key, std::string(value)); }
  ConfigText& add(const char* key, std::int64_t value);
  ConfigText& add(const char* key, double value);
  ConfigText& add(const char* key, bool value);
  ConfigText& add(const char* key, const std::vector<std::int64_t>& values);
  std::string text() const { return "{\n" + lines_ + "\n}\n"; }

 private:
  ConfigText& line(const char* key, const std::string& value);
  std::string lines_;
};

}  // namespace mhla::models
