// Elements of one floating type as those of another, rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "io/scalar_type.h"

namespace mhla::io {

// Types that networks compute in; f8 can be read, but scaling is another file's affair.
bool is_floating(ScalarType type);   // f64, f32, f16, bf16, f8
bool can_round_to(ScalarType type);  // f64, f32, f16, bf16
// "bf16", "bfloat16" and the like; throws with the known ones.
ScalarType parse_precision(std::string_view text);

// `count` elements, not necessarily aligned; the ranges may not overlap. Returns how many finite
// ones became infinite: f16 ends at 65504.
std::uint64_t convert_elements(const void* from, ScalarType from_type, void* to, ScalarType to_type,
                               std::size_t count);

}  // namespace mhla::io
