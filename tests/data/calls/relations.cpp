// The built-in pictures for pytest.
#include "data/relations.h"

#include <cstdint>
#include <cstring>

// to [count, size, size, 3], targets [count].
extern "C" void data_relations(std::uint64_t seed, std::uint64_t first, std::int64_t count,
                               int size, std::uint8_t* to, std::int64_t* targets) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto made = mhla::data::draw_relation(seed, first + static_cast<std::uint64_t>(i), size);
    std::memcpy(to, made.image.pixels().data(), made.image.pixels().size());
    to += made.image.pixels().size();
    targets[i] = made.target;
  }
}
