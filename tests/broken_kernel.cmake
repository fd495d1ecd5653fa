# Passes when PROGRAM, built with a wrong kernel, fails its own verification with exit code 1.
execute_process(COMMAND ${PROGRAM} verify
  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT code EQUAL 1)
  message(FATAL_ERROR "mhla-broken verify: expected exit code 1, got ${code}\n${output}")
endif()
if(NOT output MATCHES "failed")
  message(FATAL_ERROR "mhla-broken verify: the output does not say what failed\n${output}")
endif()
