// Pictures: writing, reading, and what is said about files that cannot be read. That the pixels are
// right is compared with Pillow in tests/python/test_pictures_pillow.py.
#include "io/image.h"

#include "io/files.h"
#include "io/image_resize.h"

namespace {

using mhla::Error;
using mhla::ErrorCode;
using mhla::io::Image;

class Pictures : public mhla::test::IoTest {};

Image gradient(int width, int height) {
  Image image(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      std::uint8_t* pixel = image.row(y) + std::ptrdiff_t{3} * x;
      pixel[0] = static_cast<std::uint8_t>(x * 7);
      pixel[1] = static_cast<std::uint8_t>(y * 5);
      pixel[2] = static_cast<std::uint8_t>(x + y);
    }
  }
  return image;
}

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_F(Pictures, APngIsReadBackAsWritten) {
  const Image image = gradient(33, 17);
  mhla::io::write_image(path("a.png"), image.view());
  EXPECT_EQ(mhla::io::read_image(path("a.png")), image);
}

TEST_F(Pictures, AJpegKeepsItsSizeAndAboutItsColours) {
  const Image image(40, 24, 200, 100, 50);
  mhla::io::write_image(path("a.JPG"), image.view());
  const Image back = mhla::io::read_image(path("a.JPG"));
  ASSERT_EQ(back.width(), 40);
  ASSERT_EQ(back.height(), 24);
  for (std::size_t i = 0; i < back.pixels().size(); ++i) {
    EXPECT_NEAR(back.pixels()[i], image.pixels()[i], 3);
  }
}

TEST_F(Pictures, AnUnreadableFileIsNamed) {
  for (const std::string bytes : {"", "text", "\x89PNG\r\n\x1a\n", "\xff\xd8\xff\xe0"}) {
    const std::string file = write("broken.jpeg", bytes);
    const auto message = message_of([&] { mhla::io::read_image(file); }, ErrorCode::corrupt_data);
    EXPECT_NE(message.find("broken.jpeg: "), std::string::npos) << message;
  }
  const auto missing = message_of([&] { mhla::io::read_image(path("none.png")); }, ErrorCode::io);
  EXPECT_NE(missing.find("none.png"), std::string::npos);
}

TEST_F(Pictures, EveryCutOfAFileIsRefused) {
  const Image image = gradient(16, 16);
  for (const std::string& bytes :
       {mhla::io::encode_png(image.view()), mhla::io::encode_jpeg(image.view())}) {
    for (std::size_t length = 0; length + 12 < bytes.size(); length += 7) {
      EXPECT_THROW(mhla::io::decode_image(bytes.substr(0, length), "cut"), Error) << length;
    }
  }
}

// A width of 65500 in the header of a file of a few hundred bytes must not fill the memory.
TEST_F(Pictures, ASizeThatTheFileCannotHoldIsRefused) {
  std::string jpeg = mhla::io::encode_jpeg(gradient(8, 8).view());
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (const std::size_t at : {frame + 5, frame + 7}) {
    jpeg[at] = '\xff';
    jpeg[at + 1] = '\0';
  }
  const auto message = message_of([&] { mhla::io::decode_image(jpeg, "big"); },
                                  ErrorCode::corrupt_data);
  EXPECT_NE(message.find("65280x65280"), std::string::npos) << message;
}

TEST_F(Pictures, APictureCannotBeWrittenWhereThereIsNoFolderOrFormat) {
  const Image image(2, 2);
  message_of([&] { mhla::io::write_image(path("no/a.png"), image.view()); }, ErrorCode::io);
  message_of([&] { mhla::io::write_image(path("a.bmp"), image.view()); },
             ErrorCode::invalid_argument);
}

TEST_F(Pictures, ACropIsAViewAndStaysInside) {
  const Image image = gradient(10, 8);
  const Image part(image.view().crop(3, 2, 4, 5));
  EXPECT_EQ(part.width(), 4);
  EXPECT_EQ(part.row(0)[0], 21);
  EXPECT_EQ(part.row(4)[1], 30);
  EXPECT_EQ(Image(image.view().crop(0, 0, 10, 8)), image);
  for (const auto& [x, y, w, h] : {std::array{-1, 0, 2, 2},
                                   {0, 0, 11, 1},
                                   {9, 0, 2, 1},
                                   {0, 7, 1, 2},
                                   {0, 0, 0, 1},
                                   {2147483647, 0, 1, 1}}) {
    EXPECT_THROW(image.view().crop(x, y, w, h), Error);
  }
}

TEST_F(Pictures, SizesWithoutPixelsAreRefused) {
  EXPECT_THROW(Image(0, 5), Error);
  EXPECT_THROW(Image(5, -1), Error);
  EXPECT_THROW(Image(1 << 20, 1 << 20), Error);
  const Image image(4, 4);
  EXPECT_THROW(mhla::io::resize(image.view(), 0, 4, mhla::io::Filter::box), Error);
  EXPECT_THROW(mhla::io::parse_filter("nearest"), Error);
}

TEST_F(Pictures, ResizingOfACropReadsNothingOutsideOfIt) {
  Image image(30, 30, 10, 20, 30);
  for (int x = 0; x < 30; ++x) std::memset(image.row(x) + 30, 255, 60);  // white from column 10 on
  const Image small = mhla::io::resize(image.view().crop(0, 0, 10, 30), 5, 5,
                                       mhla::io::Filter::lanczos);
  EXPECT_EQ(small, Image(5, 5, 10, 20, 30));
}

}  // namespace
