// The shm link between two threads of one process: a batch there and its acknowledgement back, and how many
// bytes a second go one way. The raw limits are a cache line and memcpy. The link's ends stand in for two
// processes: the memory is the same memfd, the caches are the same.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/errc.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/reactor/sync.h>
#include <tidelock/replication/shm.h>

#include "cache_line.h"
#include "support.h"

namespace tidelock::bench {
namespace {

constexpr FrameContext kContext{HistoryId{1}, Generation{1}, ShardId{0}};
constexpr std::size_t kSmallBatchBytes = 64;
constexpr std::int64_t kPingPongs = 64;
/// Bytes of one throughput round.
constexpr std::int64_t kRoundBytes = 16 << 20;

Status publish(Link& link, std::uint64_t number, Bytes payload) {
  FrameHeader header;
  header.history = kContext.history;
  header.shard = kContext.shard;
  header.entries = 1;
  header.first_lsn = header.last_lsn = Lsn{number};
  return link.publish(header, std::span(&payload, 1));
}

/// Everything that has arrived, acknowledged with one control frame as a replica does once a turn.
/// Returns the number of batches; `touch` sees each.
template <class F>
Result<std::uint32_t> receive_all(Link& link, F&& touch) {
  ControlFrame ack;
  std::uint32_t batches = 0;
  while (true) {
    const auto batch = link.receive();
    if (!batch) {
      if (!(batch.error() == ReplicationErrc::link_empty)) return batch.error();
      break;
    }
    touch(batch->payload);
    ack.received_lsn = ack.applied_lsn = batch->header.last_lsn;
    link.release();
    ++batches;
  }
  if (batches == 0) return batches;
  ack.history = kContext.history;
  ack.shard = kContext.shard;
  TL_TRY(link.send_control(ack));
  return batches;
}

/// Reads one word of every cache line, so that every line has to come over.
std::uint64_t touch_lines(Bytes payload) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + sizeof sum <= payload.size(); at += kCacheLineBytes) {
    sum += load<std::uint64_t>(payload.data() + at);
  }
  return sum;
}

// ---- the link alone, polled by two threads --------------------------------------------------------------

/// The replica's thread: until the primary closes.
void echo(Link& link, const CpuPair& cpus) {
  while (true) {
    const auto batches =
        receive_all(link, [](Bytes payload) { benchmark::DoNotOptimize(touch_lines(payload)); });
    if (!batches) return;
    // After an empty pass too: an acknowledgement that found the lane full leaves with a later flush.
    link.flush();
    if (*batches == 0) wait_step(cpus);
  }
}

/// Asked once a pass of a loop that waits. It looks at the clock now and then only: that takes longer than a
/// pass.
class Patience {
 public:
  [[nodiscard]] bool over() {
    if (++passes_ % 4096 != 0) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!give_up_) give_up_ = now + std::chrono::seconds(30);
    return now >= *give_up_;
  }

 private:
  std::uint64_t passes_ = 0;
  std::optional<std::chrono::steady_clock::time_point> give_up_;
};

Error nothing_came(const char* what) { return Error(ReactorErrc::deadline_exceeded, what); }

/// Waits for the acknowledgement of batch `number`.
Status await_ack(Link& link, std::uint64_t number, const CpuPair& cpus) {
  for (Patience patience; !patience.over();) {
    const auto ack = link.receive_control();
    if (ack) {
      if (ack->applied_lsn.value >= number) return {};  // the next flush gives the control credit back
    } else if (!(ack.error() == ReplicationErrc::link_empty)) {
      return ack.error();
    } else {
      link.flush();
      wait_step(cpus);
    }
  }
  return nothing_came("a batch was not acknowledged");
}

void round_trip(benchmark::State& state) {
  const CpuPair cpus = cpu_pair();
  auto pair = shm_pair(kContext, {});
  if (skipped(state, pair)) return;
  const std::array<std::byte, kSmallBatchBytes> payload{};
  {
    const PinnedThread replica(cpus.second, [&, cpus] { echo(*pair->replica, cpus); });
    on_cpu(cpus.first, [&] {
      std::uint64_t number = 0;
      for (auto _ : state) {
        if (skipped(state, publish(*pair->primary, ++number, payload))) break;
        pair->primary->flush();
        if (skipped(state, await_ack(*pair->primary, number, cpus))) break;
      }
      pair->primary->close("the benchmark is over");
    });
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(describe(cpus));
}

/// Publishes whatever the ring takes, and waits for the acknowledgement of the last batch of the round.
Status send_round(Link& link, std::uint64_t& number, Bytes payload, const CpuPair& cpus) {
  for (std::int64_t sent = 0; sent < kRoundBytes; sent += static_cast<std::int64_t>(payload.size())) {
    ++number;
    for (Patience patience;;) {
      Status published = publish(link, number, payload);
      if (published) break;
      if (patience.over()) return nothing_came("the ring stayed full");
      if (!(published.error() == ReplicationErrc::link_full)) return published;
      while (link.receive_control().has_value()) continue;
      link.poll(64);
      link.flush();
      wait_step(cpus);
    }
    link.flush();
  }
  return await_ack(link, number, cpus);
}

void throughput(benchmark::State& state) {
  const CpuPair cpus = cpu_pair();
  auto pair = shm_pair(kContext, {});
  if (skipped(state, pair)) return;
  const std::vector<std::byte> payload(static_cast<std::size_t>(state.range(0)), std::byte{1});
  {
    const PinnedThread replica(cpus.second, [&, cpus] { echo(*pair->replica, cpus); });
    on_cpu(cpus.first, [&] {
      std::uint64_t number = 0;
      for (auto _ : state) {
        if (skipped(state, send_round(*pair->primary, number, payload, cpus))) break;
      }
      pair->primary->close("the benchmark is over");
    });
  }
  state.SetItemsProcessed(state.iterations() * (kRoundBytes / state.range(0)));
  state.SetBytesProcessed(state.iterations() * kRoundBytes);
  state.SetLabel(describe(cpus));
}

// ---- the link between two reactors ----------------------------------------------------------------------

/// A link as a source of its reactor, as Primary and Replica hold theirs.
class LinkSource : public PollSource {
 public:
  explicit LinkSource(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  Status start(Reactor& reactor) {
    TL_TRY(link_->start(reactor));
    reactor.add_source(*this);
    return {};
  }
  void stop(Reactor& reactor) {
    reactor.remove_source(*this);
    link_.reset();
  }
  void flush() override { link_->flush(); }
  void arm() override { link_->arm(); }
  void disarm() override { link_->disarm(); }
  [[nodiscard]] bool has_work() const override { return link_->has_work(); }

 protected:
  std::unique_ptr<Link> link_;
};

class EchoSource final : public LinkSource {
 public:
  using LinkSource::LinkSource;
  std::uint32_t poll(std::uint32_t budget) override {
    const std::uint32_t found = link_->poll(budget);
    const auto batches =
        receive_all(*link_, [](Bytes payload) { benchmark::DoNotOptimize(touch_lines(payload)); });
    return found + (batches ? *batches : 0);
  }
};

class PingSource final : public LinkSource {
 public:
  using LinkSource::LinkSource;
  /// Suspends: yes (fiber), until that many batches went there and were acknowledged one by one
  Status run(std::int64_t round_trips, Instant deadline) {
    left_ = round_trips;
    TL_TRY(publish(*link_, ++number_, payload_));
    return done_.wait_until([this] { return left_ == 0; }, deadline);
  }
  std::uint32_t poll(std::uint32_t budget) override {
    std::uint32_t found = link_->poll(budget);
    while (link_->receive_control().has_value()) {
      ++found;
      if (--left_ == 0) {
        done_.notify_one();
      } else if (!publish(*link_, ++number_, payload_)) {
        break;  // run() fails at its deadline
      }
    }
    return found;
  }

 private:
  std::array<std::byte, kSmallBatchBytes> payload_{};
  std::uint64_t number_ = 0;
  std::int64_t left_ = 0;
  Condition done_;
};

void round_trip_of_reactors(benchmark::State& state) {
  const CpuPair cpus = cpu_pair();
  auto pair = shm_pair(kContext, {});
  if (skipped(state, pair)) return;
  PingSource ping(std::move(pair->primary));
  EchoSource echoes(std::move(pair->replica));
  auto group = ReactorGroup::start(pair_options(cpus));
  if (skipped(state, group)) return;
  Status echo_started;
  const auto start_echo = [&] { echo_started = echoes.start(*Reactor::current()); };
  const auto stop_echo = [&] { echoes.stop(*Reactor::current()); };
  const auto measure = [&] {
    Reactor& reactor = *Reactor::current();
    if (skipped(state, ping.start(reactor))) return;
    for (auto _ : state) {
      if (skipped(state, ping.run(kPingPongs, reactor.now() + kPatience))) break;
    }
    ping.stop(reactor);
  };
  if (skipped(state, (*group)->run(CoreId{1}, start_echo, kPatience)) || skipped(state, echo_started)) return;
  if (skipped(state, (*group)->run(CoreId{0}, measure, kPatience))) return;
  if (skipped(state, (*group)->run(CoreId{1}, stop_echo, kPatience))) return;
  state.SetItemsProcessed(state.iterations() * kPingPongs);
  state.SetLabel(describe(cpus));
}

// ---- the raw limit --------------------------------------------------------------------------------------

/// Copies the same bytes into memory as large as the link's ring, which nobody reads.
void raw_memcpy(benchmark::State& state) {
  const std::size_t batch_bytes = static_cast<std::size_t>(state.range(0));
  on_cpu(cpu_pair().first, [&] {
    const std::vector<std::byte> payload(batch_bytes, std::byte{1});
    std::vector<std::byte> ring(LinkOptions{}.ring_bytes);
    for (auto _ : state) {
      for (std::size_t sent = 0; sent < std::size_t{kRoundBytes}; sent += batch_bytes) {
        std::memcpy(ring.data() + (sent & (ring.size() - 1)), payload.data(), batch_bytes);
        benchmark::ClobberMemory();
      }
    }
  });
  state.SetItemsProcessed(state.iterations() * (kRoundBytes / state.range(0)));
  state.SetBytesProcessed(state.iterations() * kRoundBytes);
}

void register_all() {
  using benchmark::RegisterBenchmark;
  const auto sizes = [](benchmark::internal::Benchmark* benchmark) {
    benchmark->ArgName("batch")->Arg(4 << 10)->Arg(64 << 10)->UseRealTime();
  };
  RegisterBenchmark("round_trip_64B/tidelock_threads", round_trip)->UseRealTime();
  RegisterBenchmark("round_trip_64B/tidelock_reactors", round_trip_of_reactors)->UseRealTime();
  RegisterBenchmark("round_trip_64B/raw_cache_line", cache_line_round_trip)->UseRealTime();
  RegisterBenchmark("one_way/tidelock_threads", throughput)->Apply(sizes);
  RegisterBenchmark("one_way/raw_memcpy", raw_memcpy)->Apply(sizes);
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  tidelock::bench::register_all();
  return tidelock::bench::run(argc, argv, {.link = "shm", .needs_io_uring = true});
}
