/// Key-value input: parsed once by the parent, handed to the children as one sealed memfd.
/// Thread:   one owner
/// Errors:   one line that names the file, the line where there is one, and the remedy
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tidelock/base/result.h>

#include "file_handle.h"

namespace tidelock::tools {

enum class InputFormat : std::uint8_t { tsv, dpkg };

/// Where the system keeps its package database; every Debian has it.
inline constexpr const char* kDpkgStatusPath = "/var/lib/dpkg/status";

struct Record {
  std::string_view key;
  std::string_view value;
};

class Dataset {
 public:
  /// `path` "-" reads standard input.
  static Result<Dataset> read(const std::string& path, InputFormat format);
  static Result<Dataset> parse(std::string text, InputFormat format, const std::string& name);
  /// `keys` records made from `seed`.
  static Result<Dataset> generate(std::uint64_t seed, std::uint32_t keys, std::uint32_t value_bytes);
  /// From the memfd that share() made. Trusted only as far as its lengths add up.
  static Result<Dataset> map(int fd);
  /// A sealed memfd with all records.
  [[nodiscard]] Result<FileHandle> share() const;

  [[nodiscard]] const std::vector<Record>& records() const { return records_; }
  /// Of all keys and values.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Keys that came more than once; the last one won.
  [[nodiscard]] std::uint64_t duplicates() const { return duplicates_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  Dataset(Dataset&&) noexcept = default;
  Dataset& operator=(Dataset&&) noexcept = default;

 private:
  Dataset() = default;
  Status parse_tsv();
  Status parse_dpkg();
  Status add(std::string_view key, std::string_view value, std::size_t line);
  void drop_duplicates();

  std::string name_;
  std::unique_ptr<std::string> text_;    ///< what the records point into, when parsed here
  std::shared_ptr<const void> mapping_;  ///< the same, when mapped
  std::vector<Record> records_;
  std::uint64_t duplicates_ = 0;
};

}  // namespace tidelock::tools
