# Tests of the trainer and its tasks: one program on LibTorch, and the program `mhla` from outside.
if(NOT TARGET mhla_trainer OR MHLA_SANITIZE)
  return()
endif()
file(GLOB train_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_test.cpp
     ${CMAKE_CURRENT_LIST_DIR}/../tasks/*_test.cpp)
if(NOT MHLA_GLOO_INCLUDE)
  list(FILTER train_sources EXCLUDE REGEX "/distributed_test\\.cpp$")
endif()
set(launcher ${PROJECT_SOURCE_DIR}/src/cli/launch.cpp)
add_executable(test_train ${train_sources} ${launcher})
# clang-tidy looks at this file too, and cannot read a precompiled header of gcc.
set_source_files_properties(${launcher} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
target_link_libraries(test_train PRIVATE mhla_flags mhla_trainer mhla_tasks
  mhla_io_torch mhla_torch nlohmann_json::nlohmann_json GTest::gtest GTest::gtest_main)
target_compile_options(test_train PRIVATE $<$<CONFIG:Release>:-O0>)  # compiling is what takes long
target_precompile_headers(test_train PRIVATE ${PROJECT_SOURCE_DIR}/src/tasks/precompiled.h
  <gtest/gtest.h>)
add_test(NAME train COMMAND test_train)
set_tests_properties(train PROPERTIES TIMEOUT 300)

if(TARGET mhla_train AND TARGET yaml-cpp)
  set(python ${MHLA_PYTHON})
  if(NOT python)
    set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  file(GLOB program_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/test_*.py)
  foreach(file IN LISTS program_tests)
    cmake_path(GET file STEM name)
    add_test(NAME train.${name} COMMAND ${python} -m pytest -q -rs -p no:cacheprovider ${file})
    set_tests_properties(train.${name} PROPERTIES TIMEOUT 600
      ENVIRONMENT "MHLA_PROGRAM=$<TARGET_FILE:mhla_program>")
  endforeach()
endif()
