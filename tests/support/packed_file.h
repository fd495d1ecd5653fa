// Small packed files as bytes: gzip, xz, and tar entries made here.
#pragma once

#include <cstdio>
#include <string>

namespace mhla::test {

using std::string_literals::operator""s;

// What kGz and kXz hold.
inline const std::string kContent = "linear attention linear attention linear attention ";
inline const std::string kGz =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xcb\xc9\xcc\x4b\x4d\x2c\x52\x48\x2c\x29\x49\xcd\x2b"
    "\xc9"
    "\xcc\xcf\x53\xc8\x21\x28\x00\x00\x77\xfd\xc7\xfe\x33\x00\x00\x00"s;
inline const std::string kXz =
    "\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x0c\x00\x00\x00\x8f\x98\x41"
    "\x9c"
    "\xe0\x00\x32\x00\x18\x5d\x00\x36\x1a\x4a\x1f\x0b\x92\xad\x57\x98\x47\xda\x18\xd0\xf9\x21\xa5"
    "\x23"
    "\x1c\x67\x60\x58\xc0\x00\x00\x00\xcd\xd3\xc9\x63\xd1\x82\xb8\x13\x00\x01\x34\x33\xca\x27\x7c"
    "\x24"
    "\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a"s;

inline std::string tar_entry(const std::string& name, const std::string& bytes, char type = '0') {
  std::string header(512, '\0');
  name.copy(header.data(), 100);
  char size[13];
  std::snprintf(size, sizeof size, "%011zo", bytes.size());
  header.replace(124, 11, size);
  header[156] = type;
  header.replace(257, 8, "ustar\00000"s);
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  header.replace(148, 7, std::string(text) + '\0');
  std::string padded = bytes;
  padded.resize((bytes.size() + 511) / 512 * 512);
  return header + padded;
}

}  // namespace mhla::test
