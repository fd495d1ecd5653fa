// The runtime of src/mhla/cuda/runtime.h on the CPU: device memory is host memory.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "emulator.h"
#include "mhla/core/device_memory.h"
#include "mhla/error.h"

namespace mhla::cuda {

inline void check_call(int, const char*) {}
struct DeviceGuard {
  explicit DeviceGuard(int) {}
};
inline int device_count() { return 1; }
inline int compute_capability() { return 90; }
inline int shared_memory(int) { return 227 * 1024; }
inline void allow_shared(const void*, int) {}

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};
template <typename Args>
void launch(void (*kernel)(Args), const Grid& grid, int threads, int shared_bytes, void*,
            const Args& args, bool = false) {
  emulator::run(grid.x, grid.y, grid.z, threads, shared_bytes, [&] { kernel(args); });
}

template <typename T>
class DeviceTable {
 public:
  DeviceTable() = default;
  explicit DeviceTable(const std::vector<T>& host)
      : data_(std::make_shared<std::vector<T>>(host)) {}
  const T* data() const { return data_ ? data_->data() : nullptr; }
  int size() const { return data_ ? static_cast<int>(data_->size()) : 0; }

 private:
  std::shared_ptr<std::vector<T>> data_;
};

}  // namespace mhla::cuda
