# Tests of what a user meets first: the installed package and the checks of the documents.
set(front_door ${CMAKE_CURRENT_LIST_DIR})

add_test(NAME front_door.installed_package_builds_the_example
  COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
          -DLIBDIR=${CMAKE_INSTALL_LIBDIR} -DCXX=${CMAKE_CXX_COMPILER} -DGENERATOR=${CMAKE_GENERATOR}
          -DSANITIZE=${MHLA_SANITIZE} -P ${front_door}/installed_package.cmake)

find_program(PYTHON3 python3)
mark_as_advanced(PYTHON3)
if(PYTHON3)
  add_test(NAME front_door.check_docs_finds_wrong_names
    COMMAND ${PYTHON3} ${front_door}/check_docs_test.py)
  if(TARGET mhla_program)
    add_test(NAME front_door.documents_name_what_exists
      COMMAND ${PYTHON3} ${PROJECT_SOURCE_DIR}/scripts/check-docs
              --program $<TARGET_FILE:mhla_program>)
  endif()
endif()
