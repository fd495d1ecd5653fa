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

# mhla_find_torch(): the target, where MHLA_TORCH wants it and it is there; its libraries lie in
# MHLA_TORCH_LIBRARY_DIR.
# NOTE: torch's own CMake files want a whole CUDA toolkit of its version wherever torch has CUDA, also
# where pip alone brought it and nothing of ours needs one.
function(mhla_find_torch)
  if(NOT MHLA_TORCH)
    return()
  endif()
  set(least 2.11)
  set(libraries torch torch_cpu c10)
  mhla_python(python)
  execute_process(
    COMMAND ${python} -c "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, sep=';')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE error
    RESULT_VARIABLE failed)
  list(POP_FRONT found root version)
  if(NOT failed AND NOT EXISTS ${root}/lib/libtorch_cpu.so)
    set(failed TRUE)
    set(error "there is no lib/libtorch_cpu.so in ${root}")
  elseif(NOT failed AND version VERSION_LESS ${least})
    set(failed TRUE)
    set(error "it is ${version}, ${least} or newer is needed")
  endif()
  if(failed)
    if(MHLA_TORCH STREQUAL "AUTO")
      set_property(GLOBAL APPEND PROPERTY MHLA_MISSING "torch ${least} or newer of ${python} (MHLA_TORCH=AUTO)")
      return()
    endif()
    message(FATAL_ERROR "MHLA_TORCH=ON, but ${python} has no torch to compile against: ${error}")
  endif()
  # NOTE: the first of them brings the CUDA libraries where there are any; naming these would keep
  # what is built from a torch without.
  list(TRANSFORM libraries REPLACE "(.+)" "${root}/lib/lib\\1.so")
  add_library(mhla_libtorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(mhla_libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${libraries};${MHLA_CXX_LIBRARY}"
    # What registers itself is kept though nobody calls it; what it needs it finds when it is loaded.
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed,--allow-shlib-undefined")
  set(MHLA_TORCH_LIBRARY_DIR ${root}/lib PARENT_SCOPE)
  set_property(GLOBAL PROPERTY MHLA_TORCH_FOUND "${version} at ${root}")
endfunction()
