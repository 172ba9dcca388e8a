/// The last events of a worker as text, in memory that outlives it: whoever crashes leaves what led to it.
/// Thread:   one writer; readers in another process, once the writer is gone
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tidelock::sim {

class SharedTrace {
 public:
  static constexpr std::size_t kLineBytes = 256;
  /// Null: no memory for that.
  static std::unique_ptr<SharedTrace> create(std::size_t lines);
  ~SharedTrace();
  SharedTrace(const SharedTrace&) = delete;
  SharedTrace& operator=(const SharedTrace&) = delete;

  /// Its first kLineBytes.
  void add(std::string_view line);
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  struct Page;
  SharedTrace(Page* page, std::size_t lines) : page_(page), lines_max_(lines) {}
  Page* page_;
  std::size_t lines_max_;
};

}  // namespace tidelock::sim
