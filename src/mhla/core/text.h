// Small text helpers of the parsers: numbers, lists, and the nearest known word for a typo.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

// The whole text as a number, or nothing.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator);
// The parts would outlive a temporary text.
template <std::same_as<std::string> Text>
void split(Text&& text, char separator) = delete;

// The candidate with the smallest edit distance; empty when none comes near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace mhla
