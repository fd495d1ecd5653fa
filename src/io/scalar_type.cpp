// One table of element types; every name comes from it.
#include "io/scalar_type.h"

#include <array>

#include "mhla/error.h"

namespace mhla::io {
namespace {

struct Row {
  ScalarType type;
  std::size_t size;
  const char *name, *safetensors, *torch, *storage;
};

constexpr std::array kRows = {
    Row{ScalarType::f64, 8, "f64", "F64", "float64", "DoubleStorage"},
    Row{ScalarType::f32, 4, "f32", "F32", "float32", "FloatStorage"},
    Row{ScalarType::f16, 2, "f16", "F16", "float16", "HalfStorage"},
    Row{ScalarType::bf16, 2, "bf16", "BF16", "bfloat16", "BFloat16Storage"},
    // The types without a storage class of their own are saved as untyped storages.
    Row{ScalarType::f8_e4m3, 1, "f8_e4m3", "F8_E4M3", "float8_e4m3fn", ""},
    Row{ScalarType::f8_e5m2, 1, "f8_e5m2", "F8_E5M2", "float8_e5m2", ""},
    Row{ScalarType::c64, 8, "c64", "C64", "complex64", "ComplexFloatStorage"},
    Row{ScalarType::i64, 8, "i64", "I64", "int64", "LongStorage"},
    Row{ScalarType::i32, 4, "i32", "I32", "int32", "IntStorage"},
    Row{ScalarType::i16, 2, "i16", "I16", "int16", "ShortStorage"},
    Row{ScalarType::i8, 1, "i8", "I8", "int8", "CharStorage"},
    Row{ScalarType::u64, 8, "u64", "U64", "uint64", ""},
    Row{ScalarType::u32, 4, "u32", "U32", "uint32", ""},
    Row{ScalarType::u16, 2, "u16", "U16", "uint16", ""},
    Row{ScalarType::u8, 1, "u8", "U8", "uint8", "ByteStorage"},
    Row{ScalarType::boolean, 1, "bool", "BOOL", "bool", "BoolStorage"},
};

const Row& row(ScalarType type) {
  for (const Row& each : kRows) {
    if (each.type == type) return each;
  }
  fail(ErrorCode::internal, "io", "no scalar type ", static_cast<int>(type));
}

std::optional<ScalarType> parse(std::string_view text, const char* Row::* column) {
  for (const Row& each : kRows) {
    if (!text.empty() && text == each.*column) return each.type;
  }
  return std::nullopt;
}

}  // namespace

std::size_t size_of(ScalarType type) { return row(type).size; }
const char* name(ScalarType type) { return row(type).name; }
const char* safetensors_name(ScalarType type) { return row(type).safetensors; }

std::optional<ScalarType> parse_safetensors_name(std::string_view text) {
  return parse(text, &Row::safetensors);
}
std::optional<ScalarType> parse_torch_dtype(std::string_view text) {
  return parse(text, &Row::torch);
}
std::optional<ScalarType> parse_torch_storage(std::string_view text) {
  return parse(text, &Row::storage);
}

}  // namespace mhla::io
