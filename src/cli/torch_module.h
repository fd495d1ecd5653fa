// Modules that need LibTorch, loaded when they are asked for, so that the program starts fast and
// runs where LibTorch is not.
#pragma once

namespace mhla::cli {

// The function `symbol` of the module `file`, which lies beside the program or, installed, in
// ../lib/mhla. `where`: a string literal, of the error; `asked`: what the user typed.
void* module_symbol(const char* file, const char* symbol, const char* where, const char* asked);

template <typename Function>
Function module_function(const char* file, const char* symbol, const char* where,
                         const char* asked) {
  return reinterpret_cast<Function>(module_symbol(file, symbol, where, asked));
}

}  // namespace mhla::cli
