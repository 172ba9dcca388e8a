#include "receipts.h"

#include <cerrno>
#include <new>

#include <sys/mman.h>

namespace tidelock::tools {
namespace {

Result<void*> map_shared(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "cannot map the receipts' memory");
  return memory;
}

}  // namespace

Result<FileHandle> ReceiptChannels::create(std::uint32_t shards) {
  const std::size_t bytes = sizeof(Slot) * shards;
  FileHandle file(::memfd_create("tidelock-receipts", MFD_CLOEXEC));
  if (!file.valid())
    return Error::from_errno(errno, "memfd_create failed: is the limit of open files reached?");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    return Error::from_errno(errno, "cannot take shared memory for the receipts");
  TL_TRY(void* memory, map_shared(file.get(), bytes));
  for (std::uint32_t i = 0; i < shards; ++i) ::new (static_cast<Slot*>(memory) + i) Slot;
  ::munmap(memory, bytes);
  return file;
}

Result<ReceiptChannels> ReceiptChannels::map(int fd, std::uint32_t shards) {
  const std::size_t bytes = sizeof(Slot) * shards;
  TL_TRY(void* memory, map_shared(fd, bytes));
  return ReceiptChannels(
      std::shared_ptr<Slot>(static_cast<Slot*>(memory), [bytes](Slot* slots) { ::munmap(slots, bytes); }));
}

}  // namespace tidelock::tools
