// The functions and classes a pickle may name, and what becomes of calling them.
#pragma once

#include <string>

#include "io/pickle.h"

namespace mhla::io::pickle {

// A function, dtype or storage class; refuses a name that is not on the list.
Value global(std::string_view module, std::string_view name, const std::string& file);

// What calling `function` gives: a new value, or one of the arguments. Throws where the arguments
// are not those that torch.save writes.
struct Result {
  Value made;
  bool is_argument = false;
  Id argument = 0;
};
Result call(const Pickle& pickle, Id function, Id arguments, const std::string& file);

}  // namespace mhla::io::pickle
