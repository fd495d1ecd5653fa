# Finds the LibTorch inside a Python package. Only layers above libmhla include this file.

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

# mhla_find_torch(result): sets result, TORCH_LIBRARIES and MHLA_TORCH_CXX_FLAGS in the caller.
function(mhla_find_torch result)
  set(${result} OFF PARENT_SCOPE)
  if(NOT MHLA_TORCH)
    return()
  endif()
  mhla_python(python)
  execute_process(
    COMMAND ${python} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE error
    RESULT_VARIABLE failed)
  if(failed)
    if(MHLA_TORCH STREQUAL "AUTO")
      set_property(GLOBAL APPEND PROPERTY MHLA_MISSING "torch of ${python} (MHLA_TORCH=AUTO)")
      return()
    endif()
    message(FATAL_ERROR "MHLA_TORCH=ON, but ${python} cannot import torch: ${error}")
  endif()
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # it warns about optional parts that wheels never contain
  find_package(Torch REQUIRED PATHS ${prefix} NO_DEFAULT_PATH GLOBAL)
  if(TARGET caffe2::mkl)
    # LibTorch has its MKL inside, and what is found on the machine only adds search paths.
    set_target_properties(caffe2::mkl PROPERTIES INTERFACE_LINK_LIBRARIES "" INTERFACE_LINK_DIRECTORIES "")
  endif()
  separate_arguments(flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  set(${result} ON PARENT_SCOPE)
  set(TORCH_LIBRARIES "${TORCH_LIBRARIES};${MHLA_CXX_LIBRARY}" PARENT_SCOPE)
  set(TORCH_INCLUDE_DIRS "${TORCH_INCLUDE_DIRS}" PARENT_SCOPE)
  set(MHLA_TORCH_CXX_FLAGS "${flags}" PARENT_SCOPE)
  set_property(GLOBAL PROPERTY MHLA_TORCH_FOUND "${Torch_VERSION} at ${prefix}")
endfunction()
