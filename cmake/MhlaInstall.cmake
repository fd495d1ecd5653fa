# What `cmake --install` puts down: headers, libraries, the program, find_package and pkg-config.
include(CMakePackageConfigHelpers)

set(libraries mhla)
if(BUILD_SHARED_LIBS)
  list(APPEND libraries mhla_static)
endif()
install(TARGETS ${libraries} EXPORT mhla-targets)
if(TARGET mhla_program)
  install(TARGETS mhla_program)
endif()
# What the program loads when a command needs LibTorch, which stays where it was found.
foreach(module mhla_torch mhla_train mhla_bench_torch mhla_bench_models)
  if(TARGET ${module} AND TARGET mhla_program)
    # NOTE: INSTALL_RPATH_USE_LINK_PATH leaves out what lies in the source tree, as .venv does.
    set_property(TARGET ${module} APPEND PROPERTY INSTALL_RPATH "$ORIGIN" ${MHLA_TORCH_LIBRARY_DIR})
    install(TARGETS ${module} LIBRARY DESTINATION lib/mhla OPTIONAL)
  endif()
endforeach()
# Depth is privacy: only the headers at the top are public.
install(DIRECTORY src/mhla/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mhla
        FILES_MATCHING PATTERN "*.h"
        PATTERN core EXCLUDE PATTERN reference EXCLUDE PATTERN cpu EXCLUDE
        PATTERN cuda EXCLUDE PATTERN verify EXCLUDE)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mhla)
install(EXPORT mhla-targets NAMESPACE mhla:: DESTINATION ${package_dir})
configure_package_config_file(cmake/mhla-config.cmake.in ${PROJECT_BINARY_DIR}/mhla-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mhla-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mhla-config.cmake ${PROJECT_BINARY_DIR}/mhla-config-version.cmake
        DESTINATION ${package_dir})

if(MHLA_WITH_CPU_KERNELS AND OpenMP_CXX_FOUND)
  set(private_libraries "${OpenMP_CXX_FLAGS}")
endif()
if(MHLA_CUDA)
  string(APPEND private_libraries " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
# NOTE: relative to the file itself, so that `cmake --install --prefix` may go anywhere.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE libdir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
           OUTPUT_VARIABLE prefix_from_pc)
configure_file(cmake/mhla.pc.in ${PROJECT_BINARY_DIR}/mhla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mhla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
