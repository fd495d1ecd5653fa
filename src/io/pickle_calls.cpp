// The functions and classes a pickle may name, and what becomes of calling them.
#include "io/pickle_calls.h"

#include <array>
#include <vector>

#include "io/scalar_type.h"
#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io::pickle {
namespace {

struct Known {
  std::string_view module, name;
  Kind result;               // Kind::none: the first argument
  std::size_t fewest, most;  // arguments
};

// NOTE: '__builtin__' is how protocol 2, torch.save's default, spells Python 3's builtins.
constexpr std::array kFunctions = {
    Known{"collections", "OrderedDict", Kind::dict, 0, 0},
    Known{"__builtin__", "set", Kind::none, 1, 1},
    Known{"builtins", "set", Kind::none, 1, 1},
    Known{"torch", "Size", Kind::none, 1, 1},
    Known{"torch", "device", Kind::none, 1, 2},
    Known{"torch._utils", "_rebuild_tensor_v2", Kind::tensor, 6, 7},
    Known{"torch._utils", "_rebuild_tensor_v3", Kind::tensor_3, 7, 8},
    Known{"torch._utils", "_rebuild_parameter", Kind::none, 3, 3},
    Known{"torch._utils", "_rebuild_parameter_with_state", Kind::none, 4, 4},
    Known{"argparse", "Namespace", Kind::object, 0, 0},
};

Value value(Kind kind, std::int64_t number) { return {.kind = kind, .number = number}; }

}  // namespace

Value global(std::string_view module, std::string_view name, const std::string& file) {
  for (std::size_t i = 0; i < kFunctions.size(); ++i) {
    if (module == kFunctions[i].module && name == kFunctions[i].name) {
      return value(Kind::function, static_cast<std::int64_t>(i));
    }
  }
  if (module == "torch.storage" && name == "UntypedStorage") return value(Kind::storage_class, -1);
  if (module == "torch") {
    if (const auto type = parse_torch_dtype(name)) {
      return value(Kind::dtype, static_cast<std::int64_t>(*type));
    }
    if (const auto type = parse_torch_storage(name)) {
      return value(Kind::storage_class, static_cast<std::int64_t>(*type));
    }
  }
  fail(ErrorCode::unsupported, "io", "'", file, "': the pickle asks for ",
       shown(std::string(module) + "." + std::string(name)),
       ", which is no data of a state dict and is never run; save the tensors alone: ",
       "torch.save(model.state_dict(), path)");
}

Result call(const Pickle& pickle, Id function, Id arguments, const std::string& file) {
  if (pickle[function].kind != Kind::function) {
    fail(ErrorCode::corrupt_data, "io", "'", file,
         "': the pickle calls something that is no function; save the file again");
  }
  const Known& known = kFunctions[static_cast<std::size_t>(pickle[function].number)];
  const std::vector<Id>& given = pickle[arguments].items;
  if (pickle[arguments].kind != Kind::tuple || given.size() < known.fewest ||
      given.size() > known.most) {
    fail(ErrorCode::unsupported, "io", "'", file, "': the pickle calls ", known.module, ".",
         known.name, " with ", given.size(), " arguments, expected ", known.fewest, " to ",
         known.most, "; save the file again with PyTorch 1.6 to 2.13");
  }
  if (known.result == Kind::none) {
    return {.made = {}, .is_argument = true, .argument = given.front()};
  }
  Result result{.made = value(known.result, 0)};
  result.made.items = given;
  return result;
}

}  // namespace mhla::io::pickle
