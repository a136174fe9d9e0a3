# tendon_library(<folder> [SOURCES ...] [LINK ...] [PRIVATE_LINK ...])
#
# One target per folder of src/. A folder's headers are reachable as "<folder>/x.h" only for targets that link it:
# each target publishes an include root that holds a single link to its own folder. Including a folder that stands
# further right in the data flow therefore does not compile.
add_library(tendon_options INTERFACE)
target_compile_options(tendon_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                       -ffp-contract=off
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms on std::string (GCC bug 105651)
                       $<$<BOOL:${TENDON_WERROR}>:-Werror>)
if(TENDON_SANITIZE)
  target_compile_options(tendon_options INTERFACE -fsanitize=${TENDON_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(tendon_options INTERFACE -fsanitize=${TENDON_SANITIZE})
  target_compile_definitions(tendon_options INTERFACE TENDON_SANITIZED=1)
  if(TENDON_SANITIZE MATCHES "thread")  # Asio's fences, which ThreadSanitizer does not see; its mutexes order the same
    target_compile_options(tendon_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

function(tendon_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(root ${PROJECT_BINARY_DIR}/include_roots/${folder})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${folder} ${root}/${folder} SYMBOLIC)
  add_library(tendon_${folder} STATIC ${ARG_SOURCES})
  set_target_properties(tendon_${folder} PROPERTIES UNITY_BUILD ${TENDON_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  target_include_directories(tendon_${folder} PUBLIC ${root})
  target_link_libraries(tendon_${folder} PUBLIC ${ARG_LINK} PRIVATE tendon_options ${ARG_PRIVATE_LINK})
  if(TENDON_SANITIZE AND folder MATCHES "^(base|ops|checkpoint|backend|model|engine|policy)$")  # where tests compute
    target_compile_options(tendon_${folder} PRIVATE -O1)
  endif()
endfunction()

# tendon_test(<name> SOURCES ... LINK ... [LABELS ...] [TIMEOUT s] [ARGS ...]): a GoogleTest program, one ctest entry.
function(tendon_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tendon_options ${ARG_LINK} GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # what takes time is in the libraries
  if(TARGET tendon_test_headers)
    target_precompile_headers(${name} REUSE_FROM tendon_test_headers)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds -Wno-stringop-overflow>)  # false alarms on std::string
  endif()
  target_compile_definitions(${name} PRIVATE TENDON_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                             TENDON_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TENDON_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
