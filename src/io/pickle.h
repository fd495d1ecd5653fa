// The pickles that torch.save writes, read as data: nothing is imported, called or executed.
//
// A pickle is a program for a stack machine. This one knows containers, numbers and texts, and of
// the functions and classes that a pickle may name only those of pickle.cpp's list, each of which
// it turns into a value itself. Any other name is refused with its name in the message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::io::pickle {

using Id = std::uint32_t;  // of a value; values may be shared and may contain themselves

enum class Kind : std::uint8_t {
  none,
  boolean,  // number
  integer,  // number
  real,
  text,           // also the printed form of what only metadata can hold, such as bytes
  list,           // items
  tuple,          // items
  dict,           // items: key, value, key, value
  object,         // items: the dict of its attributes, once it was given one
  function,       // number: its place in the list of pickle_calls.cpp
  dtype,          // number: a ScalarType
  storage_class,  // number: a ScalarType, or -1 for untyped bytes
  storage,        // items: what the persistent id held: storage_class, key, location, elements
  tensor,         // items: the arguments of _rebuild_tensor_v2
  tensor_3,       // items: the arguments of _rebuild_tensor_v3, which names its dtype
};

struct Value {
  Kind kind = Kind::none;
  std::int64_t number = 0;
  double real = 0;
  std::string_view text{};  // inside the pickle, or a literal
  std::vector<Id> items{};
};

struct Pickle {
  std::vector<Value> values;
  Id root = 0;

  const Value& operator[](Id id) const { return values[id]; }
};

// Bounds on what a file can make us allocate; real checkpoints stay far below.
constexpr std::size_t kMaxBytes = 64 << 20;
constexpr std::size_t kMaxValues = 4 << 20;

// `file` begins messages. Throws ErrorCode::corrupt_data, or ErrorCode::unsupported for names that
// are not on the list.
Pickle parse(std::string_view bytes, const std::string& file);

}  // namespace mhla::io::pickle
