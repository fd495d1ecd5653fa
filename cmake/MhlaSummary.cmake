# One paragraph at the end of a configure run: what will be built, and what is missing.
get_property(missing GLOBAL PROPERTY MHLA_MISSING)
list(REMOVE_DUPLICATES missing)
get_property(torch GLOBAL PROPERTY MHLA_TORCH_FOUND)
if(NOT torch)
  set(torch OFF)
endif()
message(STATUS "mhla ${PROJECT_VERSION}: CPU kernels ${MHLA_WITH_CPU_KERNELS}, cuda ${MHLA_CUDA}, program ${MHLA_WITH_PROGRAM}, "
               "tests ${MHLA_WITH_TESTS}, fuzzers ${MHLA_BUILD_FUZZERS}, LibTorch ${torch}")
foreach(item IN LISTS missing)
  message(STATUS "mhla: left out, because not found: ${item}")
endforeach()
