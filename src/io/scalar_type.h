// The element types that checkpoints hold, more than the operator computes with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mhla::io {

enum class ScalarType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  c64,  // two f32
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
};

std::size_t size_of(ScalarType type);
// As mhla says it everywhere: "bf16", "i64", "bool".
const char* name(ScalarType type);
// As safetensors headers say it: "BF16", "I64", "BOOL".
const char* safetensors_name(ScalarType type);
std::optional<ScalarType> parse_safetensors_name(std::string_view text);
// As torch.save says it: the dtype "bfloat16" and the storage class "BFloat16Storage".
std::optional<ScalarType> parse_torch_dtype(std::string_view text);
std::optional<ScalarType> parse_torch_storage(std::string_view text);

}  // namespace mhla::io
