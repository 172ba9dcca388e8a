# Installs the libraries, their listed headers, a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)

get_property(targets GLOBAL PROPERTY tidelock_targets)
install(TARGETS ${targets} EXPORT tidelockTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tidelockTargets NAMESPACE tidelock:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidelock)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tidelockConfig.cmake.in
  ${CMAKE_BINARY_DIR}/tidelockConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidelock)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tidelockConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tidelockConfig.cmake ${CMAKE_BINARY_DIR}/tidelockConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidelock)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tidelock.pc.in ${CMAKE_BINARY_DIR}/tidelock.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tidelock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tidelock)
