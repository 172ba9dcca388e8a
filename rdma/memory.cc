#include "memory.h"

#include <cerrno>
#include <string>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <tidelock/rdma/errc.h>

namespace tidelock {
namespace {

constexpr std::size_t kHugePageBytes = 2ULL << 20;

std::size_t page_size() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

/// Whole pages only: on one that is shared with something else a child may need that.
void keep_from_children(MutableBytes memory) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t first = align_up(start, page_size());
  const std::uintptr_t end = (start + memory.size()) / page_size() * page_size();
  if (first < end) static_cast<void>(::madvise(memory.data() + (first - start), end - first, MADV_DONTFORK));
}

}  // namespace

Result<std::unique_ptr<PageMemory>> PageMemory::map(std::size_t bytes) {
  const std::size_t whole = align_up(bytes, page_size());
  void* at = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Error::from_errno(errno, "cannot map " + std::to_string(whole) + " bytes");
  if (whole >= kHugePageBytes) static_cast<void>(::madvise(at, whole, MADV_HUGEPAGE));
  return std::unique_ptr<PageMemory>(new PageMemory({static_cast<std::byte*>(at), whole}));
}

PageMemory::~PageMemory() { ::munmap(bytes_.data(), bytes_.size()); }

Error verbs_error(int errno_value, const std::string& what) {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  if (errno_value == ENOMEM && known && limit.rlim_cur != RLIM_INFINITY) {
    return Error(
        RdmaErrc::memlock_too_low,
        what + ": perhaps for want of locked memory; at most " + std::to_string(limit.rlim_cur / 1024) +
            " KiB may be locked; raise it with `ulimit -l unlimited` as root, or LimitMEMLOCK=infinity");
  }
  return Error::from_errno(errno_value, what);
}

Result<RdmaHandle<ibv_mr>> register_memory(ibv_pd* pd, MutableBytes memory, int access) {
  RdmaHandle<ibv_mr> mr(ibv_reg_mr(pd, memory.data(), memory.size(), static_cast<unsigned>(access)));
  if (mr == nullptr) return verbs_error(errno, "cannot register " + std::to_string(memory.size()) + " bytes");
  // ENABLED: libibverbs has just done this itself. UNNEEDED: the kernel copies what devices use when it
  // forks.
  if (::ibv_is_fork_initialized() == IBV_FORK_DISABLED) keep_from_children(memory);
  return mr;
}

}  // namespace tidelock
