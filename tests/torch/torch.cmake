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
