// TensorBoard's event files: records of protocol buffers, each with masked CRC-32C sums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mhla::io {

// Writes scalars that `tensorboard --logdir` shows. A record is on its way to the disk after
// flush(); a file cut off in the middle of a record is read up to the record before.
class TensorBoard {
 public:
  // A new file in `folder`, which is made. `first_step`: of what older files hold, values at this
  // step and after it are forgotten by the reader (a resumed run repeats them).
  TensorBoard(const std::string& folder, std::int64_t first_step);
  TensorBoard(const TensorBoard&) = delete;
  TensorBoard& operator=(const TensorBoard&) = delete;
  ~TensorBoard();

  void scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void flush();

  const std::string& path() const { return path_; }

 private:
  void record(std::string_view event);

  std::string path_, buffer_;
  int file_ = -1;
};

// CRC-32C (Castagnoli) of the bytes; known values are in RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace mhla::io
