#include "shm_handshake.h"

#include <algorithm>
#include <array>
#include <utility>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

#include "shm_link.h"
#include "shm_memory.h"
#include "wire_layout.h"

namespace tidelock {
namespace {

constexpr std::byte kReady{1};

std::uint64_t version_range(std::uint64_t min, std::uint64_t max) { return min << 16 | max; }

/// Why a hello that did not decode is refused. Magic and versions stand where they are in every version.
Refusal refusal_for(const Error& error, Bytes hello) {
  namespace field = layout::hello;
  if (error == ReplicationErrc::bad_version && hello.size() >= field::kVersionMax + sizeof(std::uint16_t)) {
    return {RefusalReason::version, version_range(kWireVersionMin, kWireVersionMax),
            version_range(load<std::uint16_t>(hello.data() + field::kVersionMin),
                          load<std::uint16_t>(hello.data() + field::kVersionMax))};
  }
  return {RefusalReason::malformed, kHelloBytes, hello.size()};
}

/// As what the listener answers that hello: whoever sends entries is a primary to the other.
NodeRole answering(const Hello& asking) {
  const bool asks_for_none = asking.role == NodeRole::candidate && !asking.flags.fetch;
  return asks_for_none ? NodeRole::replica : NodeRole::primary;
}

Error explain(Error error, const char* step) {
  if (error == ReactorErrc::deadline_exceeded) return Error(ReactorErrc::deadline_exceeded, step);
  return error;
}

}  // namespace

void send_refusal(int fd, const Refusal& refusal) {
  std::array<std::byte, kRefusalBytes> message;
  encode_refusal(refusal, message);
  // A fresh socket has room for it. A peer that is gone needs no answer.
  static_cast<void>(send_message(fd, message, -1, control_now() + kHandshakeStep));
}

Result<Hello> receive_hello(int fd, Instant deadline) {
  std::array<std::byte, kHelloBytes> message;
  TL_TRY(const std::size_t bytes, receive_message(fd, message, nullptr, deadline));
  const Bytes said = Bytes(message).first(bytes);
  auto hello = decode_hello(said);
  Refusal refusal;
  if (!hello) {
    refusal = refusal_for(hello.error(), said);
  } else if (hello->role == NodeRole::primary) {
    refusal = {RefusalReason::role, static_cast<std::uint64_t>(NodeRole::primary),
               static_cast<std::uint64_t>(hello->role)};
  } else {
    return hello;
  }
  send_refusal(fd, refusal);
  return to_error(refusal);
}

Result<std::unique_ptr<Link>> answer_hello(UniqueFd socket, const Hello& theirs, const Hello& ours,
                                           const LinkOptions& options) {
  TL_TRY(const UniqueFd shared, ShmMemory::create(options));
  TL_TRY(auto memory, ShmMemory::map_own(shared.get(), options));
  Hello answer = ours;
  answer.ring_bytes = options.ring_bytes;
  std::array<std::byte, kHelloBytes> message;
  encode_hello(answer, message);
  const Instant deadline = control_now() + kHandshakeStep;
  TL_TRY(send_message(socket.get(), message, shared.get(), deadline));

  std::array<std::byte, 1> ready;
  auto got = receive_message(socket.get(), ready, nullptr, deadline);
  if (!got) return explain(got.error(), "the replica did not map the ring in time");
  const FrameContext context{ours.history, ours.generation, theirs.shard};
  return std::unique_ptr<Link>(
      std::make_unique<ShmRingLink>(NodeRole::primary, std::move(socket), std::move(memory), context));
}

Result<ConnectedPeer> say_hello(UniqueFd socket, const Hello& ours, Instant deadline,
                                std::optional<Refusal>* refusal) {
  std::array<std::byte, kHelloBytes> message;
  encode_hello(ours, message);
  if (auto sent = send_message(socket.get(), message, -1, deadline); !sent) {
    return explain(sent.error(), "the primary does not take our hello");
  }

  UniqueFd shared;
  const auto got = receive_message(socket.get(), message, &shared, deadline);
  if (!got) return explain(got.error(), "the primary has not answered our hello in time");
  const Bytes answer = Bytes(message).first(*got);
  if (answer.size() == kRefusalBytes) {
    TL_TRY(const Refusal theirs, decode_refusal(answer));
    if (refusal != nullptr) *refusal = theirs;
    return to_error(theirs);
  }
  TL_TRY(const Hello theirs, decode_hello(answer));
  if (theirs.role != answering(ours)) {
    return to_error({RefusalReason::role, static_cast<std::uint64_t>(theirs.role),
                     static_cast<std::uint64_t>(ours.role)});
  }
  if (!shared.valid())
    return Error(ReplicationErrc::malformed, "the primary's hello brings no shared memory");
  TL_TRY(auto memory, ShmMemory::map_peers(shared.get(), theirs.ring_bytes));
  TL_TRY(send_message(socket.get(), std::span(&kReady, 1), -1, deadline));

  const FrameContext context{theirs.history, theirs.generation, ours.shard};
  return ConnectedPeer{
      std::make_unique<ShmRingLink>(NodeRole::replica, std::move(socket), std::move(memory), context),
      theirs};
}

}  // namespace tidelock
