// A condition that ends the fuzzer when it does not hold, whatever the build type.
#pragma once

#include <cstdio>
#include <cstdlib>

#define MHLA_FUZZ_CHECK(condition)                                                        \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
