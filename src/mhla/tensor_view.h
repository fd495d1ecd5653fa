// Non-owning description of a strided tensor: where it is, what it holds, how it is laid out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <type_traits>

namespace mhla {

enum class DType { f32, f64, bf16, f16 };

// 16-bit storage types; arithmetic happens in f32.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

std::size_t size_of(DType dtype);
const char* name(DType dtype);
DType parse_dtype(const std::string& text);

template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, float>) return DType::f32;
  if constexpr (std::is_same_v<U, double>) return DType::f64;
  if constexpr (std::is_same_v<U, BFloat16>) return DType::bf16;
  if constexpr (std::is_same_v<U, Float16>) return DType::f16;
  static_assert(std::is_same_v<U, float> || std::is_same_v<U, double> ||
                    std::is_same_v<U, BFloat16> || std::is_same_v<U, Float16>,
                "element type must be float, double, mhla::BFloat16 or mhla::Float16");
}

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {Kind::cpu, 0}; }
  static constexpr Device cuda(int index) { return {Kind::cuda, index}; }
  friend bool operator==(const Device&, const Device&) = default;
};
std::string to_string(const Device& device);

// Strides count elements. Inputs are only read, so a view of const data is made with `of` as well.
struct TensorView {
  static constexpr int kMaxRank = 4;  // [B, N, H, D] is the largest tensor of the operator

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu();
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  // A row-major tensor.
  template <typename T>
  static TensorView of(T* data, std::initializer_list<std::int64_t> shape,
                       Device device = Device::cpu()) {
    return contiguous(const_cast<std::remove_const_t<T>*>(data), dtype_of<T>(), shape, device);
  }
  // A tensor with given strides, for example a slice of a fused [B, N, 3, H, D] projection.
  template <typename T>
  static TensorView strided(T* data, std::initializer_list<std::int64_t> shape,
                            std::initializer_list<std::int64_t> strides,
                            Device device = Device::cpu()) {
    TensorView view = of(data, shape, device);
    view.set_strides(strides);
    return view;
  }
  static TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                               Device device = Device::cpu());

  bool defined() const { return rank > 0; }
  std::int64_t size() const;  // number of elements; 1 for rank 0
  std::string shape_string() const;

 private:
  void set_strides(std::initializer_list<std::int64_t> values);
};

using Stream = void*;  // cudaStream_t; ignored on the CPU

}  // namespace mhla
