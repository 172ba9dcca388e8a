/// Page-aligned memory, and its registration with a device.
/// Thread:   registering and deregistering block: the control thread, or any while nothing turns
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>

#include "handles.h"

namespace tidelock {

/// Anonymous pages, zeroed; huge ones where the kernel has them and the size asks for it.
class PageMemory {
 public:
  /// Errors:   ENOMEM with the size
  static Result<std::unique_ptr<PageMemory>> map(std::size_t bytes);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  [[nodiscard]] MutableBytes bytes() const { return bytes_; }

 private:
  explicit PageMemory(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

/// `access`: IBV_ACCESS_LOCAL_WRITE and friends; never relaxed ordering. Where a fork would part the device
/// from this process's pages, no child gets the whole pages of `memory` any more (README.md, Fork).
/// Errors:   memlock_too_low names the limit and how to raise it; errno values
Result<RdmaHandle<ibv_mr>> register_memory(ibv_pd* pd, MutableBytes memory, int access);

/// Of a verb that takes locked memory: says whether the limit is the reason.
Error verbs_error(int errno_value, const std::string& what);

}  // namespace tidelock
