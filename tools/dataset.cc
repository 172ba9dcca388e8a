#include "dataset.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unordered_map>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/wire.h>

namespace tidelock::tools {
namespace {

/// Input is held in memory whole; more than this is refused rather than swapped.
constexpr std::size_t kInputBytesMax = std::size_t{8} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

Error usage(std::string text) {
  return Error(std::make_error_code(std::errc::invalid_argument), std::move(text));
}

Result<std::string> slurp(const std::string& path) {
  FileHandle file;
  int fd = STDIN_FILENO;
  if (path != "-") {
    file = FileHandle(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid())
      return Error::from_errno(errno,
                               fmt::format("cannot open {}: check the path and its permissions", path));
    fd = file.get();
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode))
      return usage(fmt::format("{} is a directory: give a file, or - for standard input", path));
  }
  std::string text;
  std::size_t used = 0;
  while (true) {
    if (used == kInputBytesMax)
      return usage(fmt::format("{} is larger than {} GiB: split it", path, kInputBytesMax >> 30));
    text.resize(used + kReadBytes);
    const ssize_t count = ::read(fd, text.data() + used, kReadBytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, fmt::format("cannot read {}", path));
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
  }
  text.resize(used);
  return text;
}

}  // namespace

Result<Dataset> Dataset::read(const std::string& path, InputFormat format) {
  TL_TRY(std::string text, slurp(path));
  return parse(std::move(text), format, path == "-" ? "standard input" : path);
}

Result<Dataset> Dataset::parse(std::string text, InputFormat format, const std::string& name) {
  Dataset dataset;
  dataset.name_ = name;
  dataset.text_ = std::make_unique<std::string>(std::move(text));
  if (dataset.text_->empty()) return usage(fmt::format("{} is empty: give at least one record", name));
  TL_TRY(format == InputFormat::tsv ? dataset.parse_tsv() : dataset.parse_dpkg());
  if (dataset.records_.empty()) return usage(fmt::format("{} holds no record", name));
  dataset.drop_duplicates();
  return dataset;
}

Status Dataset::add(std::string_view key, std::string_view value, std::size_t line) {
  if (key.empty())
    return usage(fmt::format("{}:{}: the key is empty: keys have 1 to {} bytes", name_, line, kKeyBytesMax));
  if (key.size() > kKeyBytesMax)
    return usage(
        fmt::format("{}:{}: the key has {} bytes: the limit is {}", name_, line, key.size(), kKeyBytesMax));
  if (value.size() > kValueBytesMax)
    return usage(fmt::format("{}:{}: the value has {} bytes: the limit is {}", name_, line, value.size(),
                             kValueBytesMax));
  if (records_.size() == UINT32_MAX)
    return usage(fmt::format("{} holds more than 4 G records: split it", name_));
  records_.push_back({key, value});
  return {};
}

Status Dataset::parse_tsv() {
  const std::string_view text = *text_;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    ++number;
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.find('\0') != std::string_view::npos)
      return usage(fmt::format("{}:{}: a NUL byte: tsv input is text, remove it", name_, number));
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos)
      return usage(fmt::format("{}:{}: no TAB: each line is key<TAB>value (or is this --format dpkg?)", name_,
                               number));
    TL_TRY(add(line.substr(0, tab), line.substr(tab + 1), number));
  }
  return {};
}

// deb-control(5): stanzas are separated by blank lines; the name is in the field "Package".
Status Dataset::parse_dpkg() {
  const std::string_view text = *text_;
  std::size_t number = 0;
  std::size_t stanza = 0;
  std::size_t stanza_line = 1;
  std::string_view package;
  const auto finish = [&](std::size_t end) -> Status {
    if (stanza == end) return {};
    const std::string_view whole = text.substr(stanza, end - stanza);
    if (package.empty())
      return usage(fmt::format("{}:{}: a stanza without a \"Package:\" field (or is this --format tsv?)",
                               name_, stanza_line));
    return add(package, whole, stanza_line);
  };
  for (std::size_t at = 0; at < text.size();) {
    ++number;
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view line = text.substr(at, end - at);
    if (line.find('\0') != std::string_view::npos)
      return usage(fmt::format("{}:{}: a NUL byte: dpkg input is text, remove it", name_, number));
    if (line.empty()) {
      TL_TRY(finish(at));
      stanza = std::min(end + 1, text.size());
      stanza_line = number + 1;
      package = {};
    } else if (constexpr std::string_view kField = "Package:"; line.starts_with(kField)) {
      package = line.substr(kField.size());
      while (!package.empty() && package.front() == ' ') package.remove_prefix(1);
      while (!package.empty() && (package.back() == ' ' || package.back() == '\r')) package.remove_suffix(1);
    }
    at = end + 1;
  }
  return finish(text.size());
}

void Dataset::drop_duplicates() {
  std::unordered_map<std::string_view, std::size_t> last;
  last.reserve(records_.size());
  std::size_t kept = 0;
  for (const Record& record : records_) {
    const auto [place, fresh] = last.try_emplace(record.key, kept);
    if (fresh) {
      records_[kept++] = record;
    } else {
      records_[place->second].value = record.value;
      ++duplicates_;
    }
  }
  records_.resize(kept);
}

Result<Dataset> Dataset::generate(std::uint64_t seed, std::uint32_t keys, std::uint32_t value_bytes) {
  Dataset dataset;
  dataset.name_ = fmt::format("{} records made from seed {}", keys, seed);
  Random random(seed);
  std::string text;
  for (std::uint32_t i = 0; i < keys; ++i) {
    text += fmt::format("key-{:08}\t", i);
    for (std::uint32_t at = 0; at < value_bytes; ++at) text += static_cast<char>('a' + random.below(26));
    text += '\n';
  }
  dataset.text_ = std::make_unique<std::string>(std::move(text));
  TL_TRY(dataset.parse_tsv());
  return dataset;
}

// The shared form: for each record u32 key length, u32 value length, key, value.
Result<FileHandle> Dataset::share() const {
  std::size_t bytes = 0;
  for (const Record& record : records_) bytes += 8 + record.key.size() + record.value.size();
  FileHandle file(::memfd_create("tidelock-dataset", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid())
    return Error::from_errno(errno, "memfd_create failed: is the limit of open files reached?");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    return Error::from_errno(errno,
                             fmt::format("cannot take {} bytes of shared memory for the input", bytes));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED)
    return Error::from_errno(errno, fmt::format("cannot map {} bytes for the input", bytes));
  auto* to = static_cast<std::byte*>(memory);
  for (const Record& record : records_) {
    store(to, static_cast<std::uint32_t>(record.key.size()));
    store(to + 4, static_cast<std::uint32_t>(record.value.size()));
    to = std::copy_n(as_bytes(record.key).data(), record.key.size(), to + 8);
    to = std::copy_n(as_bytes(record.value).data(), record.value.size(), to);
  }
  ::munmap(memory, bytes);
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return Error::from_errno(errno, "cannot seal the shared input");
  return file;
}

Result<Dataset> Dataset::map(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Error::from_errno(errno, "cannot stat the shared input");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "cannot map the shared input");
  Dataset dataset;
  dataset.mapping_ =
      std::shared_ptr<const void>(memory, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); });
  const auto* from = static_cast<const std::byte*>(memory);
  for (std::size_t at = 0; at < bytes;) {
    if (bytes - at < 8) return usage("the shared input is cut short");
    const std::size_t key = load<std::uint32_t>(from + at);
    const std::size_t value = load<std::uint32_t>(from + at + 4);
    at += 8;
    if (bytes - at < key + value) return usage("the shared input is cut short");
    dataset.records_.push_back({as_text({from + at, key}), as_text({from + at + key, value})});
    at += key + value;
  }
  return dataset;
}

std::uint64_t Dataset::bytes() const {
  std::uint64_t bytes = 0;
  for (const Record& record : records_) bytes += record.key.size() + record.value.size();
  return bytes;
}

}  // namespace tidelock::tools
