/// Which links there are and were, for people: what Engine::links() shows. One entry a shard and peer node; a
/// link that is made again continues its predecessor's history.
/// Thread:   any, takes a lock; attached(), lost() and look() on the shard's core, of whose links they read.
///           For the control path only
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include <tidelock/engine/stats.h>
#include <tidelock/replication/link.h>

namespace tidelock {

class Shard;

class LinkBoard {
 public:
  /// The stream has taken `link`, whose peer is `node`.
  void attached(ShardId shard, std::uint32_t node, Generation generation, const Link& link);
  /// The stream has lost one: whichever of those that it had it has no more.
  void lost(const Shard& shard, const std::string& reason);
  /// The same; `left`: those that it still has.
  void lost(ShardId shard, const std::vector<const Link*>& left, const std::string& reason);
  /// What the control thread makes of the shard's newest link, beyond its own states.
  void note(ShardId shard, const std::string& state, const std::string& detail);
  /// Takes over what the shard's links count by now.
  void look(const Shard& shard);
  /// This node ends all of them.
  void close_all(const std::string& reason);

  [[nodiscard]] std::vector<LinkInfo> list() const;

 private:
  struct Entry {
    LinkInfo info;             ///< without its ages and transitions
    const Link* id = nullptr;  ///< which one, while the stream has it; never followed
    Instant heard{};
    std::uint64_t closed = 0;             ///< closings_ when it last was
    std::deque<LinkTransition> changes;   ///< as this node sees them, over all generations
    std::vector<LinkTransition> its_own;  ///< as the newest link told
  };
  Entry& entry_for(ShardId shard, std::uint32_t node);
  void make_room();
  void close(Entry& entry, const std::string& reason);
  static void change(Entry& entry, const std::string& state, const std::string& detail);
  static void copy(Entry& entry, const Link& link);

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  ///< the newest attached last
  std::uint64_t closings_ = 0;
};

}  // namespace tidelock
