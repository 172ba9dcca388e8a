#include "planted_tree.h"

#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>

namespace tidelock::test {

PlantedTree::PlantedTree(std::initializer_list<std::pair<const char*, const char*>> files) {
  std::string name = (std::filesystem::temp_directory_path() / "tidelock-tree-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  root_ = name;
  for (const auto& [path, content] : files) plant(path, content);
}

PlantedTree::~PlantedTree() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void PlantedTree::plant(const std::string& path, const std::string& content) const {
  std::filesystem::create_directories(at(path).parent_path());
  std::ofstream file(at(path), std::ios::binary);
  file << content;
  REQUIRE(file.flush());
}

const tools::Check& find(const tools::Checks& checks, const std::string& name) {
  const tools::Check* found = nullptr;
  for (const tools::Check& check : checks) {
    if (check.name != name) continue;
    REQUIRE_MESSAGE(found == nullptr, "twice: " << name);
    found = &check;
  }
  REQUIRE_MESSAGE(found != nullptr, "no check " << name);
  return *found;
}

}  // namespace tidelock::test
