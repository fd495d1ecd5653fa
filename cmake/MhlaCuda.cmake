# Which nvcc compiles the CUDA kernels, and whether they are compiled where nobody said so.

# mhla_find_nvcc(result least): the one that CUDACXX names, else the first that is new enough; empty
# where there is none. NOTE: CMake itself does not look at CUDA_HOME and /usr/local/cuda.
function(mhla_find_nvcc result least)
  set(${result} "" PARENT_SCOPE)
  set(places ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX})
  if(NOT places)
    find_program(on_path nvcc NO_CACHE)
    set(places ${on_path} $ENV{CUDA_HOME}/bin/nvcc $ENV{CUDA_PATH}/bin/nvcc /usr/local/cuda/bin/nvcc)
  endif()
  foreach(nvcc IN LISTS places)
    set(text "")
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
    if(text MATCHES "release ([0-9.]+)" AND NOT CMAKE_MATCH_1 VERSION_LESS least)
      set(${result} ${nvcc} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# mhla_choose_cuda(result least): ON where torch has CUDA and an nvcc that is new enough works.
function(mhla_choose_cuda result least)
  set(${result} OFF PARENT_SCOPE)
  mhla_python(python)
  execute_process(COMMAND ${python} -c "import sys, torch; sys.exit(torch.version.cuda is None)"
                  RESULT_VARIABLE without_cuda OUTPUT_QUIET ERROR_QUIET)
  if(without_cuda)
    return()
  endif()
  mhla_find_nvcc(nvcc ${least})
  if(NOT nvcc)
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
