# Installs into a temporary prefix, then builds and runs examples/cmake_project from there, once
# with find_package and once with the flags of pkg-config; the latter also builds the README's code.
set(prefix ${BUILD}/installed)
set(work ${BUILD}/installed_example)
set(example ${SOURCE}/examples/cmake_project)
file(REMOVE_RECURSE ${prefix} ${work})
if(SANITIZE)
  set(sanitize -fsanitize=${SANITIZE})
endif()

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${example} -B ${work} -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${sanitize} -DCMAKE_PREFIX_PATH=${prefix}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/example COMMAND_ERROR_IS_FATAL ANY)

# The installed program finds what needs LibTorch.
unset(ENV{MHLA_TORCH_LIBRARY})
if(EXISTS ${prefix}/lib/mhla/mhla_train.so)
  execute_process(COMMAND ${prefix}/bin/mhla info --model tiny-deit OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${prefix}/bin/mhla train ${SOURCE}/configs/tiny.yaml --print-config
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endif()

find_program(PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs mhla
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
set(ENV{LD_LIBRARY_PATH} ${prefix}/${LIBDIR})

# The C++ of the README, as it stands there.
file(READ ${SOURCE}/README.md readme)
string(REGEX MATCH "```cpp\n([^`]*)```" found "${readme}")
if(NOT found)
  message(FATAL_ERROR "README.md: no C++ example found")
endif()
file(WRITE ${work}/readme.cpp "${CMAKE_MATCH_1}")

foreach(source ${example}/main.cpp ${work}/readme.cpp)
  execute_process(COMMAND ${CXX} -std=c++20 ${sanitize} ${source} ${flags} -o ${work}/by_pkg_config
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${work}/by_pkg_config COMMAND_ERROR_IS_FATAL ANY)
endforeach()
