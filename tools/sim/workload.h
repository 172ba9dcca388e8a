/// The clients of the world `streams`: fibers at the primary that write and read, fibers at the replicas that
/// read what they were notified of. Receipts travel by a channel of their own, which waits for no link: like
/// the notification in the incident that this project began with.
/// Thread:   one
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "history.h"
#include "stream_hosts.h"

namespace tidelock::sim {

class Workload final : public EventTarget {
 public:
  Workload(const Scene& scene, PrimaryHost& primary, std::vector<std::unique_ptr<ReplicaHost>>& replicas,
           History& history);
  ~Workload() override;

  /// A node has come up: its clients begin.
  void primary_started();
  void replica_started(std::size_t replica);
  /// In a turn of the primary. In a heavy run others write while the snapshot is under way.
  void snapshot_begins();
  /// Nobody begins another call.
  void stop() { stopping_ = true; }
  [[nodiscard]] std::uint32_t calls_left() const { return calls_left_; }

  /// One more put, to be applied by a replica before `timeout` has passed; then succeeded() tells.
  void last_put(Duration timeout);
  [[nodiscard]] bool succeeded() const { return succeeded_; }

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  enum Kind : std::uint16_t { receipt_comes };
  struct Receipt {
    HistoryId history{};
    Lsn lsn{};
    std::uint32_t key = 0;
    Duration timeout{};  ///< of whoever waits for it
  };
  struct Write {
    EntryKind kind = EntryKind::put;
    std::uint32_t key = 0;
    std::uint64_t number = 0;  ///< 0: an erase
    std::string key_bytes;
    std::string value;
    std::size_t call = 0;
    Lsn lsn{};
  };

  void client(PrimaryLife& life, Random random);
  void storm(PrimaryLife& life, Random random);
  void get(PrimaryLife& life, Random& random);
  void write(PrimaryLife& life, Random& random, bool storms = false);
  /// `key`: none: a drawn one.
  [[nodiscard]] Write make_write(PrimaryLife& life, Random& random, std::size_t bytes, bool erases,
                                 std::optional<std::uint32_t> key = std::nullopt);
  [[nodiscard]] std::optional<std::uint32_t> large_key(Random& random) const;
  [[nodiscard]] bool append(PrimaryLife& life, std::vector<Write>& writes, Instant deadline);
  [[nodiscard]] bool append_large(PrimaryLife& life, Write& write, Instant deadline);
  [[nodiscard]] std::uint64_t log_bytes_of(const Write& write) const;
  void stand(PrimaryLife& life, Write& write, Lsn lsn);
  void end_all(const std::vector<Write>& writes, Outcome outcome);
  void notify(const PrimaryLife& life, Random& random, const Write& write);
  void reader(ReplicaHost& host, ReplicaLife& life, const Receipt& receipt);
  void poller(ReplicaHost& host, ReplicaLife& life, Random random);
  void read(const ReplicaHost& host, const ReplicaLife& life, std::uint32_t key, Lsn floor, const char* why);

  Scene scene_;
  PrimaryHost& primary_;
  std::vector<std::unique_ptr<ReplicaHost>>& replicas_;
  History& history_;
  TargetId target_;
  std::vector<std::pair<std::size_t, Receipt>> receipts_;  ///< with the replica that hears of it
  std::uint64_t numbers_ = 0;
  std::uint64_t storms_ = 0;
  std::deque<std::uint32_t> large_keys_;  ///< of the newest large values
  std::uint32_t calls_left_;
  bool stopping_ = false;
  bool succeeded_ = false;
};

}  // namespace tidelock::sim
