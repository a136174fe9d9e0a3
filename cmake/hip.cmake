# AMD kernels by any clang that knows the cards; nothing of ROCm is needed. With TENDON_HIP_LANGUAGE they are compiled by
# CMake's own HIP language, which wants a ROCm root with hip-lang-config.cmake (CMAKE_HIP_COMPILER_ROCM_ROOT); include this
# file at the top then, where a language can be enabled.
#
#   tendon_find_hip(<reason>)      sets TENDON_HIP_COMPILER, and <reason> to why it will not do (empty when it will)
#   tendon_hip_objects(<name> SOURCES a.cu ...)   sets <name>_OBJECTS: host code and code objects of each source
#   tendon_closed_object(<name> SHOWS p... OBJECTS a.o ...)   sets <name>_OBJECT: all in one, other global names hidden
set(TENDON_HIP_ARCHITECTURES "gfx942;gfx950" CACHE STRING "AMD cards that the HIP kernels are built for")

# Which options have a use depends on the ROCm that clang finds; code objects of version 5 are the newest that both ROCm 6
# and 7 load.
set(tendon_hip_options -std=c++20 -nogpuinc -nogpulib -nohipwrapperinc -Wno-unused-command-line-argument
    --no-offload-new-driver -mcode-object-version=5)
set(tendon_hip_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
set(tendon_hip_language -x hip ${tendon_hip_options})
foreach(architecture ${TENDON_HIP_ARCHITECTURES})
  list(APPEND tendon_hip_language --offload-arch=${architecture})
endforeach()

# A variable of its own for builds where warnings of g++ are no errors: with equal options ccache has the objects already.
if(NOT DEFINED TENDON_HIP_WERROR)
  set(TENDON_HIP_WERROR ${TENDON_WERROR})
endif()

option(TENDON_HIP_LANGUAGE "Compile the HIP kernels by CMake's HIP language (needs a ROCm root)" OFF)
if(TENDON_HIP_LANGUAGE AND TENDON_CUDA)
  message(FATAL_ERROR "TENDON_HIP_LANGUAGE and TENDON_CUDA would both compile the same sources: leave one of them out")
endif()
if(TENDON_HIP_LANGUAGE)
  set(CMAKE_HIP_ARCHITECTURES ${TENDON_HIP_ARCHITECTURES})
  enable_language(HIP)
endif()

function(tendon_find_hip reason)
  if(TENDON_HIP_LANGUAGE)
    set(TENDON_HIP_COMPILER ${CMAKE_HIP_COMPILER} CACHE FILEPATH "clang that compiles AMD kernels")
  endif()
  find_program(TENDON_HIP_COMPILER NAMES clang++-22 amdclang++ HINTS /opt/rocm/bin DOC "clang that compiles AMD kernels")
  set(why "")
  if(NOT TENDON_HIP_COMPILER)
    set(why "there is no clang++-22 (packages clang-22 lld-22 clang-tools-22) and no amdclang++")
  else()
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/hip_probe)
    file(WRITE ${probe}.cu "__attribute__((device)) int x;\n")
    execute_process(COMMAND ${TENDON_HIP_COMPILER} ${tendon_hip_language} -c ${probe}.cu -o ${probe}.o
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE words)
    if(failed)
      string(REGEX REPLACE "\n.*" "" words "${words}")
      set(why "${TENDON_HIP_COMPILER} cannot build for ${TENDON_HIP_ARCHITECTURES}: ${words}")
    endif()
  endif()
  set(${reason} "${why}" PARENT_SCOPE)
endfunction()

function(tendon_hip_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name})
  file(MAKE_DIRECTORY ${folder})
  get_filename_component(include ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../src ABSOLUTE)
  if(TENDON_HIP_LANGUAGE)
    set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE HIP)
    add_library(${name} OBJECT ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES HIP_ARCHITECTURES "${TENDON_HIP_ARCHITECTURES}" POSITION_INDEPENDENT_CODE ON)
    target_compile_options(${name} PRIVATE ${tendon_hip_options} -O3 -DNDEBUG ${tendon_hip_warnings}
                                           $<$<BOOL:${TENDON_HIP_WERROR}>:-Werror>)
    target_include_directories(${name} PRIVATE ${include})
    set(${name}_OBJECTS $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
    return()
  endif()
  set(objects "")
  foreach(source ${ARG_SOURCES})
    get_filename_component(stem ${source} NAME_WE)
    get_filename_component(source ${source} ABSOLUTE)
    set(object ${folder}/${stem}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${TENDON_HIP_COMPILER} ${tendon_hip_language} -O3 -DNDEBUG -fPIC
              ${tendon_hip_warnings} "$<$<BOOL:${TENDON_HIP_WERROR}>:-Werror>" -I${include} -MD -MF ${object}.d
              -MT ${object} -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building HIP object ${stem}.o" COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${name}_OBJECTS ${objects} PARENT_SCOPE)
endfunction()

# Groups of inline functions are dissolved first: those of equal name elsewhere in the program are other functions.
function(tendon_closed_object name)
  cmake_parse_arguments(ARG "" "" "SHOWS;OBJECTS" ${ARGN})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  set(shows "")
  foreach(pattern ${ARG_SHOWS})
    list(APPEND shows --keep-global-symbol=${pattern})
  endforeach()
  add_custom_command(OUTPUT ${object}
                     COMMAND ${CMAKE_LINKER} -r --force-group-allocation ${ARG_OBJECTS} -o ${object}
                     COMMAND ${CMAKE_OBJCOPY} --wildcard ${shows} ${object}
                     DEPENDS ${ARG_OBJECTS} COMMENT "Closing ${name}.o" COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(${name} DEPENDS ${object})
  set(${name}_OBJECT ${object} PARENT_SCOPE)
endfunction()
