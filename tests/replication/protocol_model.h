/// The protocol of a group of nodes as a model: nodes are values, messages a bag, a step is one turn of one
/// node. It follows the design in replication/README.md, and `Rules` leaves out one part of it at a time, to
/// see that the search in protocol_model_test.cc would notice.
///
/// What it leaves out: a link's order (the bag gives messages in any order; only a peer's life is told
/// apart), drift of clocks, fragments and groups, room in the log, a snapshot's ranges (a log that is no
/// prefix is replaced in two steps, and counts for nothing between), a change of c, and what only decides who
/// asks when.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/replication/quorum.h>

namespace tidelock::model {

using Byte = std::uint8_t;

inline constexpr Byte kNodesMax = 5;
inline constexpr Byte kEntriesMax = 7;
inline constexpr Byte kLeadsMax = 4;
inline constexpr Byte kBagMax = 10;
inline constexpr Byte kLease = 2;  ///< in ticks
inline constexpr Byte kNoMemory = 15;

/// The parts of the design that may be left out.
struct Rules {
  bool second_round = true;           ///< who restarted after its promise does not count
  bool promise_heeds_lease = true;    ///< who granted a lease does not promise
  bool follow_heeds_lease = true;     ///< nor follow another epoch
  bool candidate_heeds_lease = true;  ///< nor ask for an epoch itself
  bool fresh_waits_lease = true;      ///< who restarted may have granted one
  bool memory_is_lost = true;         ///< who restarted has to ask what it may have promised
  bool memory_needs_log = true;       ///< ... and has to apply what a primary had then
  bool asks_enough = true;            ///< ... of answers_needed() others, not of one fewer
  bool only_memory_answers = true;    ///< ... even if all of the others have answered
  bool promises_suffice = true;       ///< promises_needed(), not one fewer
  bool all_found = true;              ///< founders_needed(), not one fewer
  bool founding_is_stamped = true;    ///< a founder that led when it was promised gives no memory
  bool memory_ends_promise = true;    ///< who has memory by now echoes no founder
  bool echo_voids_answers = true;     ///< who echoes one forgets the answers that it has not acted on
  bool leases_suffice = true;         ///< leases_needed(), not one fewer
  bool lease_is_timed = true;         ///< the clock is read after the capture, not a tick before
  bool echo_after_capture = true;     ///< without a lease, a read waits for echoes of a later stamp
  bool hello_counts_not = true;       ///< an LSN in a hello is no acknowledgement
  bool commit_needs_noop = true;      ///< an epoch's first commit covers its no-op
  bool only_whole_count = true;       ///< while a snapshot is under way nothing is acknowledged
  bool fork_by_epoch = true;          ///< a prefix is told by epoch and LSN, not by LSN alone
  bool commit_of_prefix = true;       ///< a commit LSN is taken only with the log
  bool old_epoch_refused = true;      ///< what comes of an epoch below the promised one is not taken
  bool promise_deposes = true;        ///< a primary that promised commits nothing more
  bool greatest_adopted = true;       ///< a candidate fetches what a promise shows beyond its own log
  bool epoch_before_lsn = true;       ///< "greater" compares the epoch first
  bool handover_ends_epoch = true;    ///< who hands over does not go on
  bool release_of_own_epoch = true;   ///< `released` ends the leases of that epoch only
  bool reads_wait_for_commit = true;  ///< a read gives nothing that may yet be lost
};

/// How much may happen. What is exhausted bounds the search.
struct Bounds {
  Byte nodes = 3;
  Byte c = 1;
  bool founded = true;  ///< starts with node 0 as the primary of all; else with nodes that hold nothing
  Byte writes = 0, crashes = 0, candidacies = 0, ticks = 0, reads = 0, handovers = 0, foundings = 0;
  Byte losses = kNodesMax;  ///< memories that may be lost at a time
  Byte parts = 0;           ///< frames that end before their epoch's no-op
  Byte repeats = 0;         ///< founders' hellos that arrive once more
};

/// An epoch is counter * 8 + node. `id` tells entries apart where the protocol would not.
struct ModelEntry {
  Byte epoch = 0, id = 0;
  friend bool operator==(const ModelEntry&, const ModelEntry&) = default;
};
struct ModelLog {
  Byte size = 0;
  std::array<ModelEntry, kEntriesMax> entries{};
  [[nodiscard]] Byte last_epoch() const { return size == 0 ? Byte{0} : entries[size - 1].epoch; }
};

enum class ModelRole : Byte { idle, asking, confirming, primary };

struct ModelNode {
  Byte life = 1;      ///< one more with each restart
  Byte history = 0;   ///< 0: none
  Byte promised = 0;  ///< an epoch
  Byte memory = 0;
  ModelRole role = ModelRole::idle;
  Byte commit = 0;
  ModelLog log;
  Byte following = 0;  ///< a lead, from 1
  Byte shadow = 0;     ///< the lead whose snapshot is under way
  Byte lease_epoch = 0, lease_until = 0, fresh_until = 0;
  // without memory
  std::array<Byte, kNodesMax> answers{};  ///< a history by node, or kNoMemory
  Byte target = 0, target_lead = 0;
  Byte asked_founding =
      0;  ///< the epoch of the founder that it promised last, if it did not do anything else since
  std::array<Byte, 5> founding_promises{};  ///< a bit an epoch: those that were stamped, in this life
  // candidate
  Byte founding = 0;   ///< the history that it would begin
  Byte released = 0;   ///< the epoch whose leases its last primary ended
  Byte confirmed = 0;  ///< a bit a node
  std::array<Byte, kNodesMax> promise_life{}, promise_epoch{}, promise_size{};
  // primary
  Byte lead = 0;  ///< from 1
  Byte noop = 0;
  std::array<Byte, kNodesMax> peer_life{}, applied{}, echo{};  ///< an echo is a tick + 1
  Byte reading = 0, read_size = 0, read_need = 0, read_at = 0, read_leased = 0;
};

/// What a primary wrote or took over: what its frames are cut from.
struct ModelLead {
  Byte epoch = 0, history = 0;
  ModelLog log;
};

enum class ModelKind : Byte { none, promise, data, ack, answer, lead_now };
struct ModelMessage {
  ModelKind kind = ModelKind::none;
  Byte from = 0, from_life = 0, to = 0, to_life = 0;
  Byte epoch = 0;  ///< or lead, or history
  Byte a = 0, b = 0, c = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes the 0 of the comparison for a pointer
  friend auto operator<=>(const ModelMessage&, const ModelMessage&) = default;
};

/// All bytes, without padding: it is hashed and compared as such.
struct ModelState {
  std::array<ModelNode, kNodesMax> nodes{};
  std::array<ModelLead, kLeadsMax> leads{};
  std::array<ModelMessage, kBagMax> bag{};  ///< sorted, empty places first
  ModelLog committed;                       ///< what any primary ever committed; `epoch` is that primary's
  Byte now = 0, next_id = 1, histories = 0;
  std::array<Byte, 8> founded_by{};  ///< by history: the epoch it began with; 0 until it did
  Byte lost = 0;                     ///< a bit a node: it had memory and restarted
  Byte writes = 0, crashes = 0, candidacies = 0, reads = 0, handovers = 0, foundings = 0, parts = 0,
       repeats = 0;
};

/// What a search came by, so that a model in which nothing happens is noticed.
struct Reached {
  std::array<std::uint64_t, 17> steps{};  ///< by Step
  std::uint64_t commits = 0, commits_of_later_epochs = 0, leads = 0, fetches = 0, forks = 0, regained = 0,
                founded = 0, reads_leased = 0, reads_echoed = 0, handovers = 0, void_promises = 0;
};

enum class Step : Byte {
  tick,
  crash,
  stand,
  found,
  promise,
  confirm,
  fetch,
  lead,
  write,
  attach,
  send,
  deliver,
  answer,
  read,
  hand_over,
  send_part,
  promise_again,
  count
};
struct Move {
  Step step;
  Byte a = 0, b = 0;
};

class Model {
 public:
  Model(const Bounds& bounds, const Rules& rules);

  [[nodiscard]] ModelState start() const;
  [[nodiscard]] std::vector<Move> moves(ModelState& state);  ///< changes nothing
  /// The state after it. Names what broke in fault().
  [[nodiscard]] ModelState after(const ModelState& state, const Move& move);
  [[nodiscard]] const char* fault() const { return fault_; }
  [[nodiscard]] const Reached& reached() const { return reached_; }
  [[nodiscard]] static std::string describe(const ModelState& state, const Move& move);

 private:
  struct Turn;
  Bounds bounds_;
  Rules rules_;
  Quorum quorum_;
  const char* fault_ = nullptr;
  Reached reached_;
};

}  // namespace tidelock::model
