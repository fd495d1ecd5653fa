# Tests against LibTorch.
file(GLOB torch_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_test.cpp)
if(NOT TARGET mhla_io_torch)
  list(FILTER torch_sources EXCLUDE REGEX "/weights_test\\.cpp$")
endif()
if(NOT TARGET mhla_data_torch)
  list(FILTER torch_sources EXCLUDE REGEX "/image_loader_test\\.cpp$")
endif()
if(TARGET mhla_libtorch AND torch_sources)
  add_executable(test_torch ${torch_sources})
  target_include_directories(test_torch PRIVATE ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR}/..)
  target_link_libraries(test_torch PRIVATE
    mhla_flags $<TARGET_NAME_IF_EXISTS:mhla_data_torch> $<TARGET_NAME_IF_EXISTS:mhla_io_torch>
    mhla_static mhla_libtorch GTest::gtest GTest::gtest_main)
  # One entry: loading LibTorch takes longer than all of its tests.
  add_test(NAME torch COMMAND test_torch)
  set_tests_properties(torch PROPERTIES TIMEOUT 300)
endif()

# The Python package, from this checkout and against the library just built.
if(TARGET mhla_torch AND NOT MHLA_SANITIZE)
  file(GLOB module_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/nn/*.cpp)
  if(TARGET mhla_io_torch)
    file(GLOB io_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/io/torch/*.cpp)
  endif()
  add_library(mhla_test_modules MODULE ${module_sources} ${io_sources})
  target_link_libraries(mhla_test_modules PRIVATE
    mhla_flags $<TARGET_NAME_IF_EXISTS:mhla_io_torch> mhla_torch)
  # What pytest compares with Pillow; it needs no LibTorch.
  if(TARGET mhla_data)
    file(GLOB data_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/data/calls/*.cpp)
    add_library(mhla_test_data MODULE ${data_sources})
    target_link_libraries(mhla_test_data PRIVATE mhla_flags mhla_data)
    set(data_library ";MHLA_TEST_DATA_LIBRARY=$<TARGET_FILE:mhla_test_data>")
  endif()
  mhla_python(python)
  file(GLOB python_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/python/test_*.py)
  foreach(file IN LISTS python_tests)
    cmake_path(GET file STEM name)
    set(run ${python})
    if(name MATCHES "timm$" AND NOT MHLA_PYTHON)
      set(run ${PROJECT_SOURCE_DIR}/.venv-timm/bin/python)
    endif()
    add_test(NAME python.${name} COMMAND ${run} -m pytest -q -rs -p no:cacheprovider ${file})
    set(environment
      "MHLA_TORCH_LIBRARY=$<TARGET_FILE:mhla_torch>;MHLA_TEST_LIBRARY=$<TARGET_FILE:mhla_test_modules>${data_library}")
    if(TARGET mhla_program)
      string(APPEND environment ";MHLA_PROGRAM=$<TARGET_FILE:mhla_program>")
    endif()
    set_tests_properties(python.${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${environment}")
  endforeach()
  # What judges the kernels of a GPU there, on this machine's processor and with the same values each time.
  if(BUILD_SHARED_LIBS)
    set(folder ${PROJECT_SOURCE_DIR}/tests/cuda)
    add_test(NAME python.kernels COMMAND ${python} -m pytest -q -rs -p no:cacheprovider --rootdir ${PROJECT_SOURCE_DIR}
      --deselect tests/cuda/test_operator.py::test_offsets_past_two_to_the_31_elements ${folder})
    set_tests_properties(python.kernels PROPERTIES TIMEOUT 600 ENVIRONMENT
      "MHLA_LIBRARY=$<TARGET_FILE:mhla>;MHLA_SEED=1;CUDA_VISIBLE_DEVICES=;PYTHONPATH=${PROJECT_SOURCE_DIR}/tests/support")
  endif()
endif()
