# Passes when LIBRARY exports its interface and nothing of its kernels.
execute_process(COMMAND ${NM} -DC --defined-only ${LIBRARY}
  RESULT_VARIABLE code OUTPUT_VARIABLE names ERROR_VARIABLE error)
if(NOT code EQUAL 0 OR NOT names MATCHES "mhla::plan\\(")
  message(FATAL_ERROR "${NM} ${LIBRARY}: expected mhla::plan among the names (${code})\n${error}")
endif()
string(REGEX MATCHALL "[^\n]*mhla::(cpu|cuda|streaming)::[^\n]*" internal "${names}")
if(internal)
  message(FATAL_ERROR "${LIBRARY} exports what cmake/libmhla.map should hide:\n${internal}")
endif()
