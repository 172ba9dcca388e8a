#include "shm_memory.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

#include <tidelock/replication/errc.h>

namespace tidelock {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Error malformed(const std::string& what) {
  return Error(ReplicationErrc::malformed, "the peer's shared memory: " + what);
}

}  // namespace

Status check_shm_options(const LinkOptions& options) {
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < kShmRingBytesMin ||
      options.ring_bytes > kShmRingBytesMax) {
    return Error::from_errno(EINVAL, "ring_bytes is " + std::to_string(options.ring_bytes) +
                                         "; it must be a power of two from 256 KiB to 1 GiB");
  }
  if (!std::has_single_bit(options.control_slots) || options.control_slots < kShmControlSlotsMin ||
      options.control_slots > kShmControlSlotsMax) {
    return Error::from_errno(EINVAL, "control_slots is " + std::to_string(options.control_slots) +
                                         "; it must be a power of two from 4 to 256");
  }
  return {};
}

ShmMemory::ShmMemory(ShmMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      total_bytes_(other.total_bytes_),
      options_(other.options_) {}

ShmMemory& ShmMemory::operator=(ShmMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(total_bytes_, other.total_bytes_);
  std::swap(options_, other.options_);
  return *this;
}

ShmMemory::~ShmMemory() {
  if (base_ != nullptr) ::munmap(base_, total_bytes_);
}

Result<UniqueFd> ShmMemory::create(const LinkOptions& options) {
  TL_TRY(check_shm_options(options));
  const std::uint64_t total = shm_total_bytes(options.ring_bytes, options.control_slots);
  UniqueFd fd(::memfd_create("tidelock-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return Error::from_errno(errno, "cannot make shared memory; raise the limit on open files (ulimit -n)");
  }
  // Allocates every page now: a machine short of memory says so here, not by SIGBUS in the data path.
  if (::ftruncate(fd.get(), static_cast<off_t>(total)) != 0 ||
      ::fallocate(fd.get(), 0, 0, static_cast<off_t>(total)) != 0) {
    return Error::from_errno(errno, "cannot allocate " + std::to_string(total) +
                                        " bytes of shared memory; choose a smaller ring_bytes");
  }
  const ShmHeader header{kShmMagic, kShmLayoutVersion, options.control_slots, options.ring_bytes, total};
  if (::pwrite(fd.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    return Error::from_errno(errno, "cannot write the shared memory's header");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Error::from_errno(errno, "cannot seal shared memory against a change of size");
  }
  return fd;
}

Result<ShmMemory> ShmMemory::map(int fd, std::uint64_t total_bytes) {
  void* base = ::mmap(nullptr, total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) {
    return Error::from_errno(errno, "cannot map " + std::to_string(total_bytes) +
                                        " bytes of shared memory; choose a smaller ring_bytes");
  }
  ShmMemory memory;
  memory.base_ = static_cast<std::byte*>(base);
  memory.total_bytes_ = total_bytes;
  return memory;
}

Result<ShmMemory> ShmMemory::map_own(int fd, const LinkOptions& options) {
  TL_TRY(auto memory, map(fd, shm_total_bytes(options.ring_bytes, options.control_slots)));
  memory.options_ = options;
  return memory;
}

Result<ShmMemory> ShmMemory::map_peers(int fd, std::uint64_t ring_bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return malformed("the descriptor is no memfd");
  if ((seals & kSizeSeals) != kSizeSeals) return malformed("it is not sealed against a change of size");
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Error::from_errno(errno, "fstat of the peer's shared memory");
  const auto total = static_cast<std::uint64_t>(status.st_size);
  if (total < kShmPageBytes || total > shm_total_bytes(kShmRingBytesMax, kShmControlSlotsMax)) {
    return malformed("its size of " + std::to_string(total) + " bytes is out of range");
  }

  // This copy is what counts: the peer may go on writing to the original.
  ShmHeader header;
  if (::pread(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    return malformed("its header cannot be read");
  }
  if (header.magic != kShmMagic) return malformed("it does not start with our magic");
  if (header.layout_version != kShmLayoutVersion) {
    return Error(ReplicationErrc::bad_version, "the peer's shared memory has layout version " +
                                                   std::to_string(header.layout_version) + ", this program " +
                                                   std::to_string(kShmLayoutVersion) +
                                                   "; run the same release on both sides");
  }
  const LinkOptions options{header.ring_bytes, header.control_slots};
  if (!check_shm_options(options)) return malformed("its ring or control lanes are out of range");
  if (options.ring_bytes != ring_bytes) {
    return malformed("its ring has " + std::to_string(options.ring_bytes) + " bytes, the hello says " +
                     std::to_string(ring_bytes));
  }
  const std::uint64_t expected = shm_total_bytes(options.ring_bytes, options.control_slots);
  if (header.total_bytes != expected || total != expected) {
    return malformed("it has " + std::to_string(total) + " bytes where its header needs " +
                     std::to_string(expected));
  }
  // Last: mapping fills in every page, up to the largest ring if the peer were believed too early.
  TL_TRY(auto memory, map(fd, total));
  memory.options_ = options;
  return memory;
}

}  // namespace tidelock
