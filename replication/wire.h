/// The wire format, to the byte. README.md holds the tables; this file holds the code for them.
/// All integers little-endian. Every decoder takes hostile bytes.
/// Thread:   any
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/errc.h>

namespace tidelock {

inline constexpr std::uint16_t kWireVersionMin = 1;
inline constexpr std::uint16_t kWireVersionMax = 1;

/// Limits of wire version 1.
inline constexpr std::uint32_t kKeyBytesMax = 64 * 1024;  ///< keys have 1 to 65,536 bytes
inline constexpr std::uint32_t kValueBytesMax = 64 * 1024 * 1024;
inline constexpr std::uint32_t kEntryBytesMax = 32 * 1024;  ///< larger entries travel as fragments
inline constexpr std::uint32_t kEntryAlignment = 8;
/// At a billion writes a second that is 146 years. No LSN of a snapshot is greater, so that what follows one
/// still counts.
inline constexpr std::uint64_t kLsnMax = std::uint64_t{1} << 62;
inline constexpr std::uint32_t kGroupBytesMax = 1024 * 1024;  ///< of entries that become visible together

/// CRC32C (Castagnoli, as in iSCSI, RFC 3720), through isa-l. `seed` chains calls.
[[nodiscard]] std::uint32_t crc32c(std::uint32_t seed, Bytes bytes);

// ---- frame: what one batch starts with in a ring --------------------------------------------------------

/// What a batch carries.
enum class FrameKind : std::uint8_t {
  entries = 0,
  range = 1,  ///< a piece of a snapshot: wire_range.h
};

struct FrameHeader {
  HistoryId history{};
  Epoch epoch{};
  Generation generation{};
  ShardId shard{};
  FrameKind kind = FrameKind::entries;
  std::uint64_t sequence = 0;       ///< 1, 2, 3, ... within one generation
  std::uint32_t payload_bytes = 0;  ///< a multiple of kEntryAlignment
  std::uint32_t entries = 0;
  Lsn first_lsn{};  ///< of the first entry (fragments of one entry share an LSN). A range: see RangeHeader
  Lsn last_lsn{};
  Lsn commit_lsn{};
};
inline constexpr std::uint32_t kFrameHeaderBytes = 80;

/// What the receiver knows and the frame must agree with.
struct FrameContext {
  HistoryId history{};
  Generation generation{};
  ShardId shard{};
};

void encode_frame_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> into);
/// Checks magic, version, CRC and context. `from` must be the receiver's own copy.
/// Errors:   bad_magic, bad_version, bad_crc, wrong_context, bad_length, malformed
Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> from,
                                        const FrameContext& context);

// ---- entry: one write -----------------------------------------------------------------------------------

enum class EntryKind : std::uint8_t {
  put = 1,
  erase = 2,
  noop = 3,      ///< no key, no value; the first entry of an epoch
  fragment = 4,  ///< a piece of a put that is larger than kEntryBytesMax
};

/// A decoded entry. For a fragment, `key` is empty and `value` is the piece of (key followed by value) that
/// starts at `offset`; key_bytes and value_bytes are the whole put's. Visible only when whole. (For
/// encode_entry() the piece may stand in both: its part of the key, then its part of the value.)
struct EntryView {
  EntryKind kind = EntryKind::noop;
  Lsn lsn{};
  Epoch epoch{};
  Bytes key;
  Bytes value;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint64_t offset = 0;
  bool group_continues = false;  ///< the next entry is in the same batch and becomes visible in the same turn
  [[nodiscard]] bool last_fragment() const {
    return offset + value.size() == std::uint64_t{key_bytes} + value_bytes;
  }
};

inline constexpr std::uint32_t kEntryHeaderBytes = 32;
inline constexpr std::uint32_t kFragmentHeaderBytes = 40;

/// Encoded size, padding included.
[[nodiscard]] std::uint32_t entry_bytes(EntryKind kind, std::size_t key_bytes, std::size_t value_bytes);
/// `into` has entry_bytes() bytes. Key and value are within the limits. Padding is zeroed.
void encode_entry(const EntryView& entry, MutableBytes into);

/// Reads entries from a payload one by one, checking each. A range's header is none of them: decode_range().
/// Lifetime: the views point into the payload
class EntryReader {
 public:
  explicit EntryReader(Bytes payload) : rest_(payload) {}
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  /// Errors:   bad_length, bad_kind, bad_crc, too_large
  Result<EntryView> next();

 private:
  Bytes rest_;
};

// ---- control: acks, credits, commit LSN, heartbeat ------------------------------------------------------

/// All counters are cumulative: a newer frame supersedes every older one. Three places mean one thing from a
/// primary or candidate and another from the other side; check_sender() says what each may say.
struct ControlFrame {
  HistoryId history{};
  Epoch epoch{};
  Generation generation{};
  ShardId shard{};
  bool closing = false;        ///< the sender is about to go, in good order
  bool lead = false;           ///< primary: the receiver is to ask for an epoch
  bool whole = false;          ///< replica: its acknowledgements count. Primary: they do with it
  std::uint64_t sequence = 0;  ///< set by the link
  Lsn received_lsn{};          ///< replica: checked by its software. Primary: its stamp, see stamp()
  Lsn applied_lsn{};           ///< replica: visible to its readers
  Lsn commit_lsn{};            ///< primary. Replica: the newest stamp that it got, see echo()
  /// Of a primary: what its clock said before the frame left. 0: none.
  [[nodiscard]] std::uint64_t stamp() const { return received_lsn.value; }
  void set_stamp(std::uint64_t stamp) { received_lsn.value = stamp; }
  /// Of the other side. 0: none.
  [[nodiscard]] std::uint64_t echo() const { return commit_lsn.value; }
  void set_echo(std::uint64_t echo) { commit_lsn.value = echo; }
};
inline constexpr std::uint32_t kControlFrameBytes = 64;

void encode_control(const ControlFrame& frame, std::span<std::byte, kControlFrameBytes> into);
Result<ControlFrame> decode_control(std::span<const std::byte, kControlFrameBytes> from,
                                    const FrameContext& context);

// ---- hello: what both sides say before a link carries anything -------------------------------------------

enum class NodeRole : std::uint8_t { primary = 1, replica = 2, candidate = 3 };

/// Refuses what a control frame's sender, of this role, does not say. Whether the LSNs can be is the
/// stream's to judge.
/// Errors:   malformed, naming it
Status check_sender(const ControlFrame& frame, NodeRole sender);

/// What a hello says besides its numbers. Each role says some of it only: README.md has the table.
struct HelloFlags {
  bool memory = false;    ///< it has not been restarted since it promised, or has learnt what it had
  bool promise = false;   ///< candidate: asks for one (else whether there would be one); replica: gives it
  bool fetch = false;     ///< candidate: has its promises, asks for what it lacks
  bool snapshot = false;  ///< primary, or a donor: one comes before the stream. Replica: it takes one
  bool released = false;  ///< candidate: the primary has ended the leases of its last epoch
  bool founding = false;  ///< candidate: of a new history; replica: promised so
  bool forced = false;    ///< primary: it leads by an operator's word, whatever others had promised
  friend constexpr bool operator==(const HelloFlags&, const HelloFlags&) = default;
};

struct Hello {
  std::uint16_t version_min = kWireVersionMin;
  std::uint16_t version_max = kWireVersionMax;
  NodeRole role = NodeRole::replica;
  HelloFlags flags{};
  std::uint16_t c = 0;  ///< of its group: how many of the others must have applied
  std::uint32_t node = 0;
  ShardId shard{};
  std::uint16_t shard_count = 0;
  HistoryId history{};  ///< 0: none yet, takes the primary's
  std::uint64_t routing_seed = 0;
  Epoch epoch{};  ///< the primary's, or followed; of a group: promised, or what is asked for
  Generation generation{};
  std::uint32_t group_sum = 0;  ///< of node numbers, lease, largest group and c; 0: in no group
  Lsn last_lsn{};               ///< replica: its last applied; primary: its last appended
  Lsn first_lsn{};              ///< primary: the oldest that its log still holds
  std::uint64_t ring_bytes = 0;
  std::uint32_t key_bytes_max = kKeyBytesMax;
  std::uint32_t value_bytes_max = kValueBytesMax;
  Epoch last_epoch{};    ///< of the entry last_lsn; 0: it does not say
  Epoch commit_epoch{};  ///< of the entry commit_lsn
  Lsn commit_lsn{};
};
inline constexpr std::uint32_t kHelloBytes = 128;

enum class RefusalReason : std::uint16_t {
  none = 0,
  version = 1,
  role = 2,
  shard_count = 3,
  history = 4,
  epoch = 5,
  behind_log = 6,
  limits = 7,
  busy = 8,  ///< not for good: the peer's core did not answer, or a snapshot has to wait; `ours` is for how
             ///< many ms, or 0: a link of this node is not gone
  malformed = 9,
  credentials = 10,  ///< a process of another user
  group = 11,        ///< another list of nodes, lease or largest group
  promised = 12,     ///< a higher epoch; `ours` is that, by epoch_value()
  no_memory = 13,    ///< restarted, and has not learnt yet what it may have promised
  lease = 14,        ///< not for good: it granted one that runs for `ours` ms more
  not_primary = 15,  ///< `ours` is the epoch that it promised
  diverged = 16,     ///< what one has committed is not in the other's line
  node = 17,         ///< the node number is the refuser's own
};

/// An epoch in one of a refusal's values.
[[nodiscard]] constexpr std::uint64_t epoch_value(Epoch epoch) {
  return std::uint64_t{epoch.node} << 32 | epoch.counter;
}
[[nodiscard]] constexpr Epoch epoch_of_value(std::uint64_t value) {
  return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
}

/// Instead of a hello: why not, with both sides' values.
struct Refusal {
  RefusalReason reason = RefusalReason::none;
  std::uint64_t ours = 0;  ///< the refuser's value (a range as min << 16 | max)
  std::uint64_t theirs = 0;
};
inline constexpr std::uint32_t kRefusalBytes = 32;

void encode_hello(const Hello& hello, std::span<std::byte, kHelloBytes> into);
/// Errors:   bad_magic, bad_crc, bad_version (names both ranges), malformed
Result<Hello> decode_hello(Bytes from);
void encode_refusal(const Refusal& refusal, std::span<std::byte, kRefusalBytes> into);
Result<Refusal> decode_refusal(Bytes from);
/// One line that names both values and the remedy.
std::string describe(const Refusal& refusal);
/// The same as the error of who was refused: peer_busy if that passes by itself, else refused.
Error to_error(const Refusal& refusal);

}  // namespace tidelock
