# One function a module: its library, its warnings, and an include root that holds only the headers that
# the module lists. An upward include or an unlisted header therefore does not compile.
include(GNUInstallDirs)

add_library(tidelock_private_flags INTERFACE)
target_compile_features(tidelock_private_flags INTERFACE cxx_std_20)
target_compile_options(tidelock_private_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
  -Wimplicit-fallthrough)
if(TIDELOCK_WERROR)
  target_compile_options(tidelock_private_flags INTERFACE -Werror)
endif()
# gcc 12 takes "literal" + std::to_string(n) for an overlapping copy (its bug 105651).
target_compile_options(tidelock_private_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# Backtraces of the stall detector and the sanitizers need frames.
target_compile_options(tidelock_private_flags INTERFACE -fno-omit-frame-pointer)

# A message passes a dozen small functions of several modules; at link time they become one. The objects hold
# machine code, too ("fat"), so installed libraries serve whoever links without it.
if(TIDELOCK_LTO AND NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  message(STATUS "TIDELOCK_LTO is for gcc, which has fat objects: off with ${CMAKE_CXX_COMPILER_ID}")
  set(TIDELOCK_LTO OFF)
endif()
if(TIDELOCK_LTO)
  add_compile_options(-flto=auto -ffat-lto-objects)
  # gcc 12 takes std::string's own checks, once inlined, for copies of half the address space.
  add_link_options(-flto=auto -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict)
endif()

# Sanitizers must reach every object of the build, the tests' too, so they are directory-wide.
if(TIDELOCK_SANITIZE)
  # gcc 12 sees uninitialised members behind the sanitizers' instrumentation where there are none.
  target_compile_options(tidelock_private_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_compile_options(-fsanitize=${TIDELOCK_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TIDELOCK_SANITIZE})
endif()
if(TIDELOCK_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

# tidelock_module(NAME reactor PREFIX tidelock/reactor HEADERS a.h b.h SOURCES a.cc LINK tidelock::base)
function(tidelock_module)
  cmake_parse_arguments(arg "" "NAME;PREFIX" "HEADERS;SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(target tidelock_${arg_NAME})
  set(root ${CMAKE_BINARY_DIR}/include/${arg_NAME})
  file(REMOVE_RECURSE ${root})
  file(MAKE_DIRECTORY ${root}/${arg_PREFIX})
  foreach(header IN LISTS arg_HEADERS)
    get_filename_component(leaf ${header} NAME)
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${header} ${root}/${arg_PREFIX}/${leaf} SYMBOLIC)
  endforeach()
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tidelock_private_flags>)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tidelock::${arg_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${root}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} ${scope} ${arg_LINK})
  if(arg_PRIVATE_LINK)
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_LINK})
  endif()
  set_property(GLOBAL APPEND PROPERTY tidelock_targets ${target})
  if(TIDELOCK_INSTALL)
    install(FILES ${arg_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${arg_PREFIX})
  endif()
endfunction()
