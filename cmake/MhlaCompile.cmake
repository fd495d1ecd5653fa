# How everything of ours is compiled: standard, warnings, sanitizers, ccache, CUDA targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # static objects end up in shared extensions
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(CCACHE)
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${CCACHE})
  endforeach()
endif()

# Linked privately by every target of ours, so that users of the library get none of it.
add_library(mhla_flags INTERFACE)
target_compile_options(mhla_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra>
  $<$<AND:$<BOOL:${MHLA_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)
# NOTE: gcc 12 warns about its own std::string ("restrict", gcc bug 105651); newer ones do not.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(mhla_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

# Sanitizers concern every object of the process, so they are set for the whole tree.
if(MHLA_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${MHLA_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options($<$<LINK_LANGUAGE:C,CXX>:-fsanitize=${MHLA_SANITIZE}>)
endif()

set(mhla_least_nvcc 12.8)
if(MHLA_CUDA STREQUAL "AUTO")
  mhla_choose_cuda(MHLA_CUDA ${mhla_least_nvcc})
endif()
if(MHLA_CUDA)
  # NOTE: targets are named by -gencode below. CMake 3.25 does not know every suffix such as 90a.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  mhla_find_nvcc(mhla_nvcc ${mhla_least_nvcc})
  if(mhla_nvcc)
    set(ENV{CUDACXX} ${mhla_nvcc})
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS mhla_least_nvcc)
    message(FATAL_ERROR "MHLA_CUDA: expected nvcc ${mhla_least_nvcc} or newer, got ${CMAKE_CUDA_COMPILER_VERSION} "
                        "(${CMAKE_CUDA_COMPILER}; CUDACXX names another)")
  endif()
  # NOTE: CMake 3.25 does not know that nvcc has C++20; later ones define this themselves.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
endif()

set(mhla_sm80 "")
if(MHLA_CUDA_PORTABLE)
  # GPUs after Hopper run what their driver makes of compute_80 when it is first called.
  set(mhla_sm80 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_80,code=compute_80)
endif()
set(mhla_sm90a -gencode=arch=compute_90a,code=sm_90a)

# Line numbers make the library six times as large unless they are packed: 280 MB.
set(mhla_packed --compress-mode=size)

# mhla_cuda_options(target gencode...): what device code of ours is compiled with.
function(mhla_cuda_options target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:${ARGN} ${mhla_packed} --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall
    $<$<BOOL:${MHLA_WERROR}>:-Werror=all-warnings>>)
endfunction()

# The shared C++ library by its file's name, for what is in one process with LibTorch: a compiler (ours
# or nvcc's, whose folders CMake hands to every link) may have a static one first, and with a C++ library
# of our own, of another version, a number that is written into a stream ends in a facet that is none.
set(MHLA_CXX_LIBRARY "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT APPLE)
  set(MHLA_CXX_LIBRARY -l:libstdc++.so.6)
endif()
