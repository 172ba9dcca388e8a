#include "shared_trace.h"

#include <algorithm>
#include <cstdint>

#include <sys/mman.h>

namespace tidelock::sim {

/// The lines stand behind it.
struct SharedTrace::Page {
  struct Line {
    std::uint64_t bytes;
    char text[kLineBytes];
  };
  std::uint64_t count;
  [[nodiscard]] Line& line(std::size_t index) { return reinterpret_cast<Line*>(this + 1)[index]; }
  static std::size_t bytes_of(std::size_t lines) { return sizeof(Page) + lines * sizeof(Line); }
};

std::unique_ptr<SharedTrace> SharedTrace::create(std::size_t lines) {
  void* const memory =
      ::mmap(nullptr, Page::bytes_of(lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<SharedTrace>(new SharedTrace(static_cast<Page*>(memory), lines));
}

SharedTrace::~SharedTrace() { ::munmap(page_, Page::bytes_of(lines_max_)); }

void SharedTrace::add(std::string_view line) {
  Page::Line& to = page_->line(page_->count % lines_max_);
  to.bytes = std::min(line.size(), kLineBytes);
  std::copy_n(line.begin(), to.bytes, to.text);
  ++page_->count;
}

std::vector<std::string> SharedTrace::lines() const {
  std::vector<std::string> lines;
  const std::uint64_t from = page_->count - std::min<std::uint64_t>(page_->count, lines_max_);
  for (std::uint64_t i = from; i < page_->count; ++i) {
    const Page::Line& line = page_->line(i % lines_max_);
    lines.emplace_back(line.text, std::min<std::size_t>(line.bytes, kLineBytes));
  }
  return lines;
}

}  // namespace tidelock::sim
