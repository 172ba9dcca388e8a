/// The clients of the world `groups`: fibers at every node that write and read there while it leads, and that
/// read what is committed whoever leads. Operators that have a node stand for an epoch.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "group_host.h"
#include "history.h"

namespace tidelock::sim {

class GroupLoad {
 public:
  /// One key more than the load reads: reads write there what comes right behind them.
  [[nodiscard]] static std::uint32_t keys_of(const Shape& shape) { return shape.keys + 1; }

  GroupLoad(const Scene& scene, std::vector<std::unique_ptr<GroupHost>>& nodes, History& history);

  /// A node has come up: its clients begin.
  void started(GroupHost& host);
  /// Nobody begins another call.
  void stop() { stopping_ = true; }
  /// An operator has it stand for an epoch. False: it is not up.
  bool promote(GroupHost& host, Duration timeout);
  /// Such calls that are under way.
  [[nodiscard]] std::uint32_t promoting() const { return promoting_; }

  /// One more put at that node, to be committed before `timeout` has passed; then succeeded() tells.
  void last_put(GroupHost& host, Duration timeout);
  [[nodiscard]] bool succeeded() const { return succeeded_; }

 private:
  struct Write {
    EntryKind kind = EntryKind::put;
    std::uint32_t key = 0;
    std::uint64_t number = 0;  ///< 0: an erase
    std::string key_bytes;
    std::string value;
    std::size_t call = 0;
    bool fence = false;  ///< of no call
    Lsn lsn{};
  };
  void client(GroupHost& host, GroupLife& life, Random random);
  void reader(GroupHost& host, GroupLife& life, Random random);
  void write(GroupHost& host, GroupLife& life, Random& random);
  void get(GroupHost& host, GroupLife& life, Random& random);
  [[nodiscard]] Write make_write(const GroupLife& life, std::uint32_t key, std::size_t bytes, bool erases);
  [[nodiscard]] Write make_fence();
  bool append(GroupHost& host, GroupLife& life, std::vector<Write>& writes, Instant deadline,
              std::uint64_t* reads, std::uint32_t read_key);
  [[nodiscard]] bool acknowledged(GroupHost& host, GroupLife& life, const Write& last, AckLevel level,
                                  Instant deadline, std::uint32_t replicas);
  void end_all(const std::vector<Write>& writes, Outcome outcome);

  Scene scene_;
  std::vector<std::unique_ptr<GroupHost>>& nodes_;
  History& history_;
  std::uint64_t numbers_ = 0;
  std::uint32_t calls_left_;
  std::uint32_t promoting_ = 0;
  bool stopping_ = false;
  bool succeeded_ = false;
};

}  // namespace tidelock::sim
