/// Reads /proc and /sys, or a tree that a test has planted. What is there is the system's to say: missing,
/// unreadable and absurd files give nothing, and text comes out as printable ASCII.
/// Thread:   any
/// Suspends: never
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidelock::tools {

class SystemFiles {
 public:
  explicit SystemFiles(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// Paths are relative to the root: "proc/meminfo". At most the first 256 KiB of a regular file.
  [[nodiscard]] std::optional<std::string> text(const std::string& path) const;
  /// The first line, at most 200 characters of it.
  [[nodiscard]] std::optional<std::string> line(const std::string& path) const;
  /// A file that holds one decimal number and nothing else.
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& path) const;
  /// What follows "name:" on its line, without the blanks around it.
  [[nodiscard]] std::optional<std::string> field(const std::string& path, std::string_view name) const;
  [[nodiscard]] bool exists(const std::string& path) const;
  /// Names in a folder, ascending; empty if there is none. At most 4,096.
  [[nodiscard]] std::vector<std::string> names(const std::string& path) const;

 private:
  std::filesystem::path root_;
};

/// Decimal digits only.
std::optional<std::uint64_t> to_number(std::string_view text);
std::string_view trimmed(std::string_view text);
/// What is neither printable ASCII nor a line's end or tab becomes '?'.
std::string printable(std::string text);
/// A name that a shell takes as it is; else `placeholder`.
std::string shell_word(const std::string& name, const char* placeholder);

}  // namespace tidelock::tools
