// Random numbers in a type and as f64, for what has no problem of `mhla verify`.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <random>
#include <vector>

#include "mhla/core/half.h"
#include "mhla/tensor_view.h"

namespace emulator {

struct Numbers {
  mhla::DType dtype;
  std::vector<double> exact;
  std::vector<std::byte> raw;

  Numbers(std::mt19937_64& random_bits, mhla::DType dtype, std::int64_t count, float scale = 1.f,
          float mean = 0.f)
      : dtype(dtype),
        exact(static_cast<std::size_t>(count)),
        raw(exact.size() * static_cast<std::size_t>(size_of(dtype))) {
    std::normal_distribution<float> normal(mean, scale);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const float value = normal(random_bits);
      if (dtype == mhla::DType::f32) {
        at<float>(i) = value;
      } else if (dtype == mhla::DType::bf16) {
        at<mhla::BFloat16>(i) = mhla::from_float<mhla::BFloat16>(value);
      } else {
        at<mhla::Float16>(i) = mhla::from_float<mhla::Float16>(value);
      }
      exact[i] = result(i);
    }
  }
  double result(std::size_t i) {
    if (dtype == mhla::DType::f32) return at<float>(i);
    return dtype == mhla::DType::bf16 ? to_float(at<mhla::BFloat16>(i))
                                      : to_float(at<mhla::Float16>(i));
  }
  mhla::TensorView on_device(std::initializer_list<std::int64_t> shape) {
    return mhla::TensorView::contiguous(raw.data(), dtype, shape, mhla::Device::cuda(0));
  }
  void forget() { raw.assign(raw.size(), std::byte{0xff}); }  // NaN

 private:
  template <typename T>
  T& at(std::size_t i) {
    return reinterpret_cast<T*>(raw.data())[i];
  }
};

}  // namespace emulator
