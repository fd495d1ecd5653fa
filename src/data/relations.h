// The built-in pictures, in which only the relation between distant parts tells the class.
#pragma once

#include <cstdint>

#include "io/image.h"

namespace mhla::data {

// A picture shows three to seven discs, each a ring of one colour around a core of another, and one
// plain square. The class is the core colour of the disc whose ring has the square's colour, so
// the answer needs the square and a disc somewhere else; each part alone says nothing.
struct Relation {
  io::Image image;
  int target = 0;
};

inline constexpr int kRelationClasses = 10;
const char* relation_class(int target);  // "red", "orange" ...

// The same arguments give the same picture, on every machine.
Relation draw_relation(std::uint64_t seed, std::uint64_t index, int size);

}  // namespace mhla::data
