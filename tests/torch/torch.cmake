# Tests against LibTorch, taken from the CMake files inside the Python package.
file(GLOB torch_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_test.cpp)
include(MhlaTorch)
mhla_find_torch(with_torch)
if(with_torch AND torch_sources)
  add_executable(test_torch ${torch_sources})
  target_include_directories(test_torch PRIVATE ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR}/..)
  target_include_directories(test_torch SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
  target_compile_options(test_torch PRIVATE ${MHLA_TORCH_CXX_FLAGS})
  target_link_libraries(test_torch PRIVATE
    mhla_flags mhla_static ${TORCH_LIBRARIES} GTest::gtest GTest::gtest_main)
  # One entry: loading LibTorch takes longer than all of its tests.
  add_test(NAME torch COMMAND test_torch)
  set_tests_properties(torch PROPERTIES TIMEOUT 300)
endif()

# The Python package, from this checkout and against the library just built.
if(TARGET mhla_torch AND NOT MHLA_SANITIZE)
  file(GLOB module_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/nn/*.cpp)
  add_library(mhla_test_modules MODULE ${module_sources})
  target_link_libraries(mhla_test_modules PRIVATE mhla_flags mhla_torch)
  set(python ${MHLA_PYTHON})
  if(NOT python)
    set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  file(GLOB python_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/python/test_*.py)
  foreach(file IN LISTS python_tests)
    cmake_path(GET file STEM name)
    add_test(NAME python.${name} COMMAND ${python} -m pytest -q -rs -p no:cacheprovider ${file})
    set_tests_properties(python.${name} PROPERTIES TIMEOUT 600 ENVIRONMENT
      "MHLA_TORCH_LIBRARY=$<TARGET_FILE:mhla_torch>;MHLA_TEST_LIBRARY=$<TARGET_FILE:mhla_test_modules>")
  endforeach()
endif()
