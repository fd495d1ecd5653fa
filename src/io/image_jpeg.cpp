// JPEG by libjpeg-turbo, with its default (exact integer) transform and smooth chroma as in Pillow.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
// NOTE: jpeglib.h needs size_t and FILE before it.
#include <jerror.h>
#include <jpeglib.h>

#include "io/image.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

// NOTE: libjpeg's SIMD code has no unwind tables, so errors leave it by longjmp; between setjmp and
// the last call of the library no object with a destructor is made.
struct Errors {
  jpeg_error_mgr manager;
  std::jmp_buf out;
  char message[JMSG_LENGTH_MAX];
};

void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->out, 1);
}

// Damaged data is only warned about, and decoded as well as can be, by Pillow too. The end of the
// file inside the picture is an error for both.
void on_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) on_error(info);
}

constexpr int kScansAtMost = 100;  // a progressive file with thousands of them takes minutes

struct Progress {
  jpeg_progress_mgr manager;
};

void on_progress(j_common_ptr info) {
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kScansAtMost) {
    auto* errors = reinterpret_cast<Errors*>(info->err);
    std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kScansAtMost);
    std::longjmp(errors->out, 1);
  }
}

// As Pillow does: files with four components hold inverted CMYK (Adobe's habit).
void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4, to += 3) {
    const int light = from[3];  // 255 - k
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - from[c]) * light + 128;
      const int value = light - (((product >> 8) + product) >> 8);
      to[c] = static_cast<std::uint8_t>(value < 0 ? 0 : value);
    }
  }
}

struct Decoder {
  jpeg_decompress_struct info{};
  Errors errors{};
  Progress progress{};
  Decoder() {
    info.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = on_error;
    errors.manager.emit_message = on_message;
    progress.manager.progress_monitor = on_progress;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }

  // False with errors.message.
  bool read_header(std::string_view bytes) {
    if (setjmp(errors.out)) return false;
    jpeg_create_decompress(&info);
    info.progress = &progress.manager;
    info.mem->max_memory_to_use = 1L << 30;
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
    if (info.num_components == 4) {
      info.out_color_space = JCS_CMYK;
    } else {
      info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    }
    return true;
  }

  // `line` holds a row of four-component pixels.
  bool read_pixels(Image& image, std::uint8_t* line) {
    if (setjmp(errors.out)) return false;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      std::uint8_t* to = image.row(static_cast<int>(info.output_scanline));
      JSAMPROW row = info.out_color_components == 3 ? to : line;
      jpeg_read_scanlines(&info, &row, 1);
      const int width = static_cast<int>(info.output_width);
      if (info.out_color_components == 4) cmyk_to_rgb(line, to, width);
      if (info.out_color_components == 1) {
        for (int x = 0; x < width; ++x) std::memset(to + 3 * x, line[x], 3);
      }
    }
    return true;
  }
};

struct Encoder {
  jpeg_compress_struct info{};
  Errors errors{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  Encoder() {
    info.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = on_error;
    errors.manager.emit_message = on_message;
  }
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }

  bool write(const ImageView& image, int quality) {
    if (setjmp(errors.out)) return false;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    for (int y = 0; y < image.height; ++y) {
      JSAMPROW row = const_cast<JSAMPROW>(image.row(y));
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    return true;
  }
};

}  // namespace

Image decode_jpeg(std::string_view bytes, const std::string& name) {
  Decoder decoder;
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::corrupt_data, "image", name, ": not a readable JPEG: ", why);
  };
  if (!decoder.read_header(bytes)) refuse(decoder.errors.message);
  const jpeg_decompress_struct& info = decoder.info;
  if (info.num_components != 1 && info.num_components != 3 && info.num_components != 4) {
    refuse("neither grey nor RGB nor CMYK");
  }
  // One colour in 4:2:0 and the shortest codes: 6 bits for 256 pixels. Three times that is enough.
  check_image_size(info.image_width, info.image_height, bytes.size(), 1024, name);
  Image image(static_cast<int>(info.image_width), static_cast<int>(info.image_height));
  std::vector<std::uint8_t> line(4 * static_cast<std::size_t>(info.image_width));
  if (!decoder.read_pixels(image, line.data())) refuse(decoder.errors.message);
  return image;
}

std::string encode_jpeg(const ImageView& image, int quality) {
  Encoder encoder;
  if (!encoder.write(image, quality)) {
    fail("image", "cannot write a JPEG: ", encoder.errors.message);
  }
  return {reinterpret_cast<const char*>(encoder.bytes), encoder.size};
}

}  // namespace mhla::io
