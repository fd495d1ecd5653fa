// Visits what a checkpoint's pickle holds, under dotted names.
#pragma once

#include <functional>
#include <string>

#include "io/checkpoint.h"
#include "io/pickle.h"

namespace mhla::io::pickle {

// Calls `tensor` for every tensor with its name and the section it hangs in, and returns the
// numbers and texts beside them. Containers that hold themselves, or are shared so often that
// visiting them would never end, throw ErrorCode::corrupt_data.
using OnTensor = std::function<void(const Value& call, std::string name, std::string section)>;
Metadata walk(const Pickle& pickle, const std::string& file, const OnTensor& tensor);

}  // namespace mhla::io::pickle
