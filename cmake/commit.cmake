# Writes OUT with the commit that is being built; run at every build, touches the file only when it changes.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=10
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#pragma once\n#define TENDON_COMMIT \"${commit}\"\n#define TENDON_VERSION \"${VERSION}\"\n")
