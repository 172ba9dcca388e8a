// libFuzzer: whatever a peer may say in the handshake, hand over as shared memory, or write into it later.
// The first byte chooses which; CRCs are put right on request, so that the checks behind them are reached.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>

#include "shm_handshake.h"
#include "shm_link.h"
#include "shm_memory.h"

using namespace tidelock;

namespace {

constexpr FrameContext kContext{HistoryId{77}, Generation{5}, ShardId{1}};
constexpr std::uint64_t kRingBytes = 256 << 10;
constexpr std::uint32_t kSlots = 4;

/// Hands out the input piece by piece; zeros after its end.
class Input {
 public:
  explicit Input(Bytes bytes) : rest_(bytes) {}
  template <class T>
  T next() {
    T value{};
    const std::size_t count = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  std::vector<std::byte> take(std::size_t count) {
    const Bytes part = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return {part.begin(), part.end()};
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  Bytes rest_;
};

std::pair<UniqueFd, UniqueFd> sockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) std::abort();
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void repair(std::vector<std::byte>& message) {
  if (message.size() < 4) return;
  const std::size_t at = message.size() - 4;
  store(message.data() + at, crc32c(0, Bytes(message).first(at)));
}

void fuzz_listener(Input& input) {
  auto [ours, theirs] = sockets();
  const bool right = (input.next<std::uint8_t>() & 1) != 0;
  auto message = input.take(300);
  if (right) repair(message);
  if (!send_message(theirs.get(), message, -1, Instant{0})) return;
  static_cast<void>(receive_hello(ours.get(), Instant{0}));
}

/// A memfd that may be honest in all, some or no respects.
UniqueFd forged_memory(Input& input) {
  const auto flags = input.next<std::uint8_t>();
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ShmHeader header{kShmMagic, kShmLayoutVersion, kSlots, kRingBytes, shm_total_bytes(kRingBytes, kSlots)};
  std::uint64_t bytes = header.total_bytes;
  if ((flags & 1) != 0) header.control_slots = input.next<std::uint32_t>();
  if ((flags & 2) != 0) header.ring_bytes = input.next<std::uint64_t>();
  if ((flags & 4) != 0) header.total_bytes = input.next<std::uint64_t>();
  if ((flags & 8) != 0) bytes = input.next<std::uint32_t>() & 0xf'ffff;
  if ((flags & 16) != 0) header.magic = input.next<std::uint64_t>();
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::pwrite(fd.get(), &header, sizeof header, 0) < 0) {
    std::abort();
  }
  if ((flags & 32) == 0) ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

void fuzz_connector(Input& input) {
  auto [ours, theirs] = sockets();
  const auto flags = input.next<std::uint8_t>();
  std::vector<std::byte> answer(kHelloBytes);
  Hello hello;
  hello.role = NodeRole::primary;
  hello.shard_count = 2;
  hello.ring_bytes = kRingBytes;
  encode_hello(hello, std::span<std::byte, kHelloBytes>(answer));
  if ((flags & 1) != 0) answer = input.take(200);
  if ((flags & 2) != 0) repair(answer);
  UniqueFd memory;
  if ((flags & 4) == 0) memory = forged_memory(input);
  if (!send_message(theirs.get(), answer, memory.get(), Instant{0})) return;
  if (auto peer = say_hello(std::move(ours), {}, Instant{0}, nullptr))
    static_cast<void>(peer->link->receive());
}

/// A peer that scribbles over everything that it may write, between any two steps of ours.
void fuzz_memory(Input& input, NodeRole victim_role) {
  auto [ours, theirs] = sockets();
  auto shared = ShmMemory::create({kRingBytes, kSlots});
  if (!shared) return;
  auto mapped = ShmMemory::map_peers(shared->get(), kRingBytes);
  auto own = ShmMemory::map_own(shared->get(), {kRingBytes, kSlots});
  if (!mapped || !own) std::abort();
  ShmRingLink victim(victim_role, std::move(ours), *std::move(mapped), kContext);
  const bool replica = victim_role == NodeRole::replica;
  ShmSide& words = replica ? own->primary() : own->replica();
  std::byte* const lane = replica ? own->primary_lane() : own->replica_lane();
  std::vector<std::byte> payload(64);
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  std::uint64_t sequence = 1;
  while (!input.empty() && victim.state() == LinkState::ready) {
    const auto operation = input.next<std::uint8_t>();
    const std::uint64_t position = std::uint64_t{input.next<std::uint16_t>()} * kShmBatchAlignment;
    std::byte* const at = own->ring() + std::min(position % kRingBytes, kRingBytes - 2 * kShmBatchAlignment);
    switch (operation % 9) {
      case 0:
        words.produced.store((operation & 128) != 0 ? input.next<std::uint64_t>() : position);
        break;
      case 1:
        words.consumed.store((operation & 128) != 0 ? input.next<std::uint64_t>() : position);
        break;
      case 2:
        words.control_produced.store(position / kShmBatchAlignment);
        break;
      case 3:
        words.control_consumed.store(position / kShmBatchAlignment);
        break;
      case 4:
        words.parked.store(input.next<std::uint32_t>());
        break;
      case 5:
        store(at, kShmTailMarker);
        break;
      case 6: {
        FrameHeader header;
        header.history = kContext.history;
        header.generation = kContext.generation;
        header.shard = kContext.shard;
        header.sequence = sequence;
        header.entries = 1;
        header.first_lsn = header.last_lsn = {1};
        header.payload_bytes = input.next<std::uint32_t>() & 0x1'fff8;
        encode_frame_header(header, std::span<std::byte, kFrameHeaderBytes>(at, kFrameHeaderBytes));
        break;
      }
      case 7: {
        ControlFrame frame;
        frame.history = kContext.history;
        frame.generation = kContext.generation;
        frame.shard = kContext.shard;
        frame.sequence = sequence;
        std::byte* const slot = lane + (position / kShmBatchAlignment % kSlots) * kControlFrameBytes;
        encode_control(frame, std::span<std::byte, kControlFrameBytes>(slot, kControlFrameBytes));
        break;
      }
      default:
        store(at, input.next<std::uint64_t>());
    }
    victim.poll(64);
    if (victim.receive_control()) ++sequence;
    if (replica) {
      if (const auto batch = victim.receive()) {
        ++sequence;
        static_cast<void>(crc32c(0, batch->payload));  // all of it is readable
        victim.release();
      }
    } else {
      FrameHeader header;
      header.entries = 1;
      static_cast<void>(victim.publish(header, ranges));
      static_cast<void>(victim.send_control({}));
    }
    victim.flush();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(std::as_bytes(std::span(data, size)));
  switch (input.next<std::uint8_t>() % 4) {
    case 0:
      fuzz_listener(input);
      break;
    case 1:
      fuzz_connector(input);
      break;
    case 2:
      fuzz_memory(input, NodeRole::replica);
      break;
    default:
      fuzz_memory(input, NodeRole::primary);
  }
  return 0;
}
