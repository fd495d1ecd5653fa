# The LibTorch inside a Python package, as the target mhla_libtorch. libmhla needs nothing of it.

# mhla_python(result): the Python whose torch is used.
function(mhla_python result)
  if(MHLA_PYTHON)
    set(${result} ${MHLA_PYTHON} PARENT_SCOPE)
  elseif(SKBUILD)
    set(${result} ${Python_EXECUTABLE} PARENT_SCOPE)  # pip's own
  else()
    set(${result} ${PROJECT_SOURCE_DIR}/.venv/bin/python PARENT_SCOPE)
  endif()
endfunction()

# mhla_choose_cuda(result least): ON where that torch has CUDA and an nvcc that is new enough works.
function(mhla_choose_cuda result least)
  set(${result} OFF PARENT_SCOPE)
  mhla_python(python)
  execute_process(COMMAND ${python} -c "import sys, torch; sys.exit(torch.version.cuda is None)"
                  RESULT_VARIABLE without_cuda OUTPUT_QUIET ERROR_QUIET)
  if(without_cuda)
    return()
  endif()
  set(nvcc "${CMAKE_CUDA_COMPILER}")
  if(NOT nvcc)
    # NOTE: CMake itself looks on the path alone.
    find_program(MHLA_NVCC NAMES $ENV{CUDACXX} nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(MHLA_NVCC)
    set(nvcc "${MHLA_NVCC}")
  endif()
  set(version 0)
  if(nvcc)
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET)
    if(text MATCHES "release ([0-9.]+)")
      set(version ${CMAKE_MATCH_1})
    endif()
  endif()
  if(version VERSION_LESS least)
    set_property(GLOBAL APPEND PROPERTY MHLA_MISSING "nvcc ${least} or newer (MHLA_CUDA=AUTO)")
    return()
  endif()
  set(ENV{CUDACXX} "${nvcc}")
  include(CheckLanguage)
  check_language(CUDA)  # compiles and links a program
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
    set_property(GLOBAL APPEND PROPERTY MHLA_MISSING
                 "an nvcc that compiles, unlike ${nvcc} (MHLA_CUDA=AUTO, ON shows why)")
    return()
  endif()
  set(${result} ON PARENT_SCOPE)
endfunction()

# mhla_find_torch(): the target, where MHLA_TORCH wants it and it is there; its libraries lie in
# MHLA_TORCH_LIBRARY_DIR.
# NOTE: torch's own CMake files want a whole CUDA toolkit of its version wherever torch has CUDA, also
# where pip alone brought it and nothing of ours needs one.
function(mhla_find_torch)
  if(NOT MHLA_TORCH)
    return()
  endif()
  mhla_python(python)
  execute_process(
    COMMAND ${python} -c "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, sep=';')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE error
    RESULT_VARIABLE failed)
  list(POP_FRONT found root version)
  if(NOT failed AND NOT EXISTS ${root}/lib/libtorch_cpu.so)
    set(failed TRUE)
    set(error "there is no lib/libtorch_cpu.so in ${root}")
  endif()
  if(failed)
    if(MHLA_TORCH STREQUAL "AUTO")
      set_property(GLOBAL APPEND PROPERTY MHLA_MISSING "torch of ${python} (MHLA_TORCH=AUTO)")
      return()
    endif()
    message(FATAL_ERROR "MHLA_TORCH=ON, but ${python} has no torch to compile against: ${error}")
  endif()
  set(libraries "")
  foreach(name torch torch_cpu c10 torch_cuda c10_cuda)
    if(EXISTS ${root}/lib/lib${name}.so)
      list(APPEND libraries ${root}/lib/lib${name}.so)
    endif()
  endforeach()
  add_library(mhla_libtorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(mhla_libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${libraries};${MHLA_CXX_LIBRARY}"
    # What registers itself is kept though nobody calls it; what it needs it finds when it is loaded.
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed,--allow-shlib-undefined")
  set(MHLA_TORCH_LIBRARY_DIR ${root}/lib PARENT_SCOPE)
  set_property(GLOBAL PROPERTY MHLA_TORCH_FOUND "${version} at ${root}")
endfunction()
