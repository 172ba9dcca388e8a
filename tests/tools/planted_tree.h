/// A tree of files in the place of /proc, /sys and /dev.
/// Thread:   one
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>

#include "doctor_check.h"
#include "doctor_files.h"
#include "has.h"

namespace tidelock::test {

class PlantedTree {
 public:
  PlantedTree(std::initializer_list<std::pair<const char*, const char*>> files = {});
  ~PlantedTree();
  PlantedTree(const PlantedTree&) = delete;
  PlantedTree& operator=(const PlantedTree&) = delete;

  void plant(const std::string& path, const std::string& content) const;
  [[nodiscard]] std::filesystem::path at(const std::string& path) const { return root_ / path; }
  [[nodiscard]] tools::SystemFiles files() const { return tools::SystemFiles(root_); }

 private:
  std::filesystem::path root_;
};

/// The check of that name, which must be there once.
const tools::Check& find(const tools::Checks& checks, const std::string& name);

}  // namespace tidelock::test
