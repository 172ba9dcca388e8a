#include "doctor_files.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <sys/stat.h>

#include "file_handle.h"

namespace tidelock::tools {
namespace {

constexpr std::size_t kTextMax = 256 * 1024;
constexpr std::size_t kLineMax = 200;
constexpr std::size_t kNamesMax = 4096;

}  // namespace

std::optional<std::string> SystemFiles::text(const std::string& path) const {
  // O_NONBLOCK: a pipe in the place of a file must not make us wait.
  const FileHandle file(::open((root_ / path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(kTextMax, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0) return {};
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return printable(std::move(text));
}

std::optional<std::string> SystemFiles::line(const std::string& path) const {
  auto whole = text(path);
  if (!whole) return {};
  const std::string_view first = trimmed(std::string_view(*whole).substr(0, whole->find('\n')));
  if (first.empty()) return {};
  return std::string(first.substr(0, kLineMax));
}

std::optional<std::uint64_t> SystemFiles::number(const std::string& path) const {
  const auto whole = text(path);
  return whole ? to_number(trimmed(*whole)) : std::nullopt;
}

std::optional<std::string> SystemFiles::field(const std::string& path, std::string_view name) const {
  const auto whole = text(path);
  if (!whole) return {};
  for (std::string_view rest = *whole; !rest.empty();) {
    const std::string_view row = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(row.size() + 1, rest.size()));
    const std::size_t colon = row.find(':');
    if (colon == std::string_view::npos || trimmed(row.substr(0, colon)) != name) continue;
    return std::string(trimmed(row.substr(colon + 1)));
  }
  return {};
}

bool SystemFiles::exists(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(root_ / path, error);
}

std::vector<std::string> SystemFiles::names(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root_ / path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (names.size() == kNamesMax) break;
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::uint64_t> to_number(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end) return {};
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

std::string printable(std::string text) {
  for (char& c : text) {
    if ((c < ' ' || c > '~') && c != '\n' && c != '\t') c = '?';
  }
  return text;
}

std::string shell_word(const std::string& name, const char* placeholder) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  };
  const bool safe = !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), plain);
  return safe ? name : placeholder;
}

}  // namespace tidelock::tools
