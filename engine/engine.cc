// Opening and closing. See engine.h.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/random.h>

#include "engine_impl.h"
#include "job.h"
#include "transport.h"

namespace tidelock {
namespace {

constexpr Duration kStartTimeout = seconds(60);  ///< to map and touch a shard's log and first tables

ReactorGroupOptions group_options(const Options& options) {
  ReactorGroupOptions group;
  group.reactors = options.shards;
  group.cpus = options.cpus;
  group.pin = options.pin;
  group.overprovisioned = options.overprovisioned;
  group.spin = options.spin;
  group.wake = options.wake;
  group.mailbox = options.mailbox;
  // One is the engine's own: it follows the primary.
  std::uint32_t own_fibers = options.role == NodeRole::replica ? 1 : 0;
  // Or one goes round each of the others in a group, and one steers.
  if (options.in_group()) own_fibers = static_cast<std::uint32_t>(options.nodes.size());
  group.reactor.max_fibers = std::min(options.max_fibers + own_fibers, kFibersMax);
  group.reactor.prepared_fibers = std::min(options.max_fibers, group.reactor.prepared_fibers);
  group.ring_entries = options.ring_entries;
  group.seed = options.seed;
  group.stall_signal = options.stall_signal;
  return group;
}

std::uint64_t nonzero_entropy() {
  std::uint64_t value = 0;
  while (value == 0) value = entropy64();
  return value;
}

/// A history is new with every primary that starts without one, whatever the seed: two runs must differ.
Lineage new_lineage(const Options& options) {
  Lineage lineage;
  lineage.history = {nonzero_entropy()};
  lineage.routing_seed = options.seed != 0 ? options.seed : nonzero_entropy();
  lineage.epoch = {1, options.node};
  return lineage;
}

Duration until(Instant deadline) { return std::max(Duration{0}, deadline - SystemClock().now()); }

}  // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  // Its threads may still run: better leaked than destroyed under them.
  if (!impl_->close(seconds(10))) static_cast<void>(impl_.release());
}

Status Engine::close(Duration timeout) { return impl_->close(timeout); }

Result<std::unique_ptr<Engine>> Engine::open(const Options& options) {
  if (Reactor::current() != nullptr) {
    return Error(ReactorErrc::not_on_reactor,
                 "open an engine from a thread of its own, not from a reactor's");
  }
  TL_TRY(options.validate());
  auto impl = std::make_unique<Impl>(options);
  Status started;
  try {
    started = impl->start();
  } catch (const std::bad_alloc&) {
    started = Error(EngineErrc::out_of_memory, "no memory to start the engine");
  } catch (const std::system_error& error) {
    started = Error(error.code(), "no thread to start the engine");
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  if (!started) return started.error();
  return engine;
}

Status Engine::Impl::start() {
  if (options.in_group()) {
    seed = std::make_unique<GroupSeed>(new_lineage(options).routing_seed);
  } else if (options.role == NodeRole::primary) {
    lineage = new_lineage(options);
  }
  TL_TRY(group, ReactorGroup::start(group_options(options)));
  // Every fiber has at most one call under way; the rest is for those that were abandoned.
  host = std::make_unique<Host>(*group, options.host_slots, options.max_fibers * 2);
  TL_TRY(start_shards());
  TL_TRY(start_links());
  return start_inspector();
}

Status Engine::Impl::start_inspector() {
  if (options.inspect.empty()) return {};
  auto started = Inspector::start(options.inspect, [this] { return links_json(options, links()); });
  if (started) {
    inspector = *std::move(started);
    return {};
  }
  // Anybody on the machine can take an abstract name. That must not keep an engine from its work.
  if (options.inspect[0] != '@') return started.error();
  events.add(started.error().message() + "; nobody can ask for its links");
  return {};
}

Status Engine::Impl::start_links() {
  const bool replica = options.role == NodeRole::replica;
  if (!replica && options.listen_address().empty()) return {};
  TL_TRY(transport, make_transport(options, *group, shards, events));
  const ControlContext context{options, *group, shards, events, board, *transport};
  control = options.in_group() ? make_group(context)
            : replica          ? make_following(context)
                               : make_admission(context, lineage);
  TL_TRY(control->start());
  lineage = control->lineage();
  return {};
}

Status Engine::Impl::start_shards() {
  shards.resize(options.shards);
  for (std::uint16_t i = 0; i < options.shards; ++i) {
    // On their own cores, so that their memory is touched there first.
    const auto create = [this, i](Reactor& reactor) -> Status {
      const ShardConfig config{{i},           lineage.history, lineage.routing_seed,
                               lineage.epoch, seed.get(),      nullptr};
      TL_TRY(shards[i], Shard::create(reactor, options, config));
      return {};
    };
    TL_TRY(run_job(*group, {i}, create, kStartTimeout));
  }
  return {};
}

// ---- the end ----------------------------------------------------------------------------------------

Status Engine::Impl::close(Duration timeout) {
  if (Reactor::current() != nullptr) {
    return Error(ReactorErrc::not_on_reactor,
                 "close an engine from a thread of its own, not from a reactor's");
  }
  const std::lock_guard one_at_a_time(closing);
  if (phase == Phase::closed) return {};
  if (group) TL_TRY(close_in_order(SystemClock().now() + timeout));
  phase = Phase::closed;
  return {};
}

namespace {

/// The steps of close(), each of which may be repeated after a deadline.
class Closing {
 public:
  Closing(ReactorGroup& group, Host& host, const std::vector<std::unique_ptr<Shard>>& shards,
          Instant deadline)
      : group_(group), host_(host), shards_(shards), deadline_(deadline) {}

  Status on_each(const std::function<void(Shard&, Reactor&)>& step) {
    for (const auto& shard : shards_) {
      if (shard == nullptr) continue;
      const auto body = [step, owner = shard.get()](Reactor& reactor) -> Status {
        step(*owner, reactor);
        return {};
      };
      TL_TRY(run_job(group_, shard->core(), body, std::max(milliseconds(100), until(deadline_))));
    }
    return {};
  }

  /// Whether nothing was in flight any more by `when`.
  bool quiet_by(Instant when) {
    return by(when, [host = &host_](Shard& shard) {
      return shard.quiet() && host->slab(shard.core()).inside() == 0;
    });
  }
  /// Whether the links had let go of the logs by `when`.
  bool departed_by(Instant when) {
    return by(when, [](Shard& shard) { return shard.departed(); });
  }

  using Backlogs = std::map<std::uint16_t, std::uint64_t>;
  /// Lets replicas apply what the logs still hold for them: until `when`, and while something moves at least
  /// once in `patience`. Returns what is left, of the shards where something is.
  Backlogs catch_up(Instant when, Duration patience) {
    Backlogs left = backlogs();
    for (Instant moved = SystemClock().now(); !left.empty();) {
      const Instant now = SystemClock().now();
      if (now >= when || now - moved >= patience) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Backlogs next = backlogs();
      if (next != left) moved = now;
      left = std::move(next);
    }
    return left;
  }

 private:
  Backlogs backlogs() {
    Backlogs found;
    for (const auto& shard : shards_) {
      if (shard == nullptr) continue;
      const auto backlog = std::make_shared<std::uint64_t>(0);
      const auto look = [backlog, owner = shard.get()](Reactor&) -> Status {
        *backlog = owner->backlog();
        return {};
      };
      // One that does not answer has its own part of close().
      if (!run_job(group_, shard->core(), look, std::max(milliseconds(100), until(deadline_)))) continue;
      if (*backlog > 0) found[shard->core().value] = *backlog;
    }
    return found;
  }

  bool by(Instant when, const std::function<bool(Shard&)>& holds) {
    while (host_.pool().inside() != 0 || !on_all(holds)) {
      if (SystemClock().now() >= when) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  bool on_all(const std::function<bool(Shard&)>& holds) {
    for (const auto& shard : shards_) {
      if (shard == nullptr) continue;
      const auto look = [holds, owner = shard.get()](Reactor&) -> Status {
        return holds(*owner) ? Status{} : Status(EngineErrc::busy);
      };
      if (!run_job(group_, shard->core(), look, std::max(milliseconds(100), until(deadline_)))) return false;
    }
    return true;
  }

  ReactorGroup& group_;
  Host& host_;
  const std::vector<std::unique_ptr<Shard>>& shards_;
  Instant deadline_;
};

}  // namespace

Status Engine::Impl::close_in_order(Instant deadline) {
  if (host == nullptr) phase = Phase::stopping;  // start() came no further
  if (phase == Phase::running) {
    TL_TRY(come_to_rest(deadline));
    keep_last_words();
    phase = Phase::destroying;
  }
  if (phase == Phase::destroying) {
    TL_TRY(Closing(*group, *host, shards, deadline).on_each([](Shard& shard, Reactor&) { shard.destroy(); }));
    control.reset();  // no shard has a link any more that could call it
    transport.reset();
    phase = Phase::stopping;
  }
  // From its first call on the group takes no jobs, even if a fiber then keeps it from stopping.
  return group->stop(std::max(seconds(1), until(deadline)));
}

/// Ends the calls, the fibers that spawn_on() started, and the links.
Status Engine::Impl::come_to_rest(Instant deadline) {
  const Instant start = SystemClock().now();
  const auto after = [&](std::int64_t quarters) {
    return start + Duration{(deadline - start).ns / 4 * quarters};
  };
  Closing steps(*group, *host, shards, deadline);
  inspector.reset();
  keep_last_words();
  host->pool().shut();
  TL_TRY(steps.on_each([](Shard& shard, Reactor&) { shard.shut(); }));
  if (control) control->stop();
  const bool in_peace = steps.quiet_by(after(2));
  for (const auto& [shard, left] : steps.catch_up(after(2), options.link_timeout)) {
    events.add("shard " + std::to_string(shard) + ": closed before a replica had applied the last " +
               std::to_string(left) + " writes");
  }
  const char* reason = options.in_group()                  ? "the node is closing"
                       : options.role == NodeRole::primary ? "the primary is closing"
                                                           : "the replica is closing";
  TL_TRY(steps.on_each([reason](Shard& shard, Reactor&) { shard.close_links(reason); }));
  board.close_all(reason);
  if (!in_peace && !steps.quiet_by(after(3))) {
    TL_TRY(steps.on_each([](Shard&, Reactor& reactor) { reactor.cancel_all(); }));
    if (!steps.quiet_by(deadline)) {
      return Error(ReactorErrc::deadline_exceeded, "calls or fibers of the engine do not end; close() again");
    }
  }
  if (!steps.departed_by(deadline)) {
    return Error(ReactorErrc::deadline_exceeded, "a device still reads the log; close() again");
  }
  return {};
}

void Engine::Impl::keep_last_words() {
  const std::lock_guard lock(last_words);
  final_stats = gather();
}

// ---- what it counts ---------------------------------------------------------------------------------

EngineStats Engine::Impl::gather() const {
  EngineStats stats;
  for (const auto& shard : shards) {
    if (shard == nullptr) continue;
    ShardStats& one = stats.shards.emplace_back();
    shard->fill(one);
    const ParkStats& park = group->park_stats(shard->core());
    one.parks = park.parks.load(std::memory_order_relaxed);
    one.lost_wakeups = park.lost_wakeups.load(std::memory_order_relaxed);
  }
  stats.notices = group->notices();
  return stats;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  if (const GatePass inside(impl_->host->pool()); inside) {
    stats = impl_->gather();
  } else {
    const std::lock_guard lock(impl_->last_words);
    stats = impl_->final_stats;
  }
  stats.events = impl_->events.list();
  return stats;
}

std::vector<LinkInfo> Engine::Impl::links() const {
  const GatePass inside(host->pool());
  const Instant deadline = SystemClock().now() + seconds(2);
  for (const auto& shard : shards) {
    const Duration left = until(deadline);
    if (!inside || Reactor::current() != nullptr || left == Duration{0}) break;
    // After a deadline it still runs, so it holds nothing of this call.
    const auto look = [seen = &board, owner = shard.get()](Reactor&) -> Status {
      seen->look(*owner);
      return {};
    };
    static_cast<void>(run_job(*group, shard->core(), look, left));
  }
  return board.list();
}

std::vector<LinkInfo> Engine::links() const { return impl_->links(); }

std::uint32_t Engine::link_count() const {
  const GatePass inside(impl_->host->pool());
  if (!inside) return 0;
  std::uint32_t links = 0;
  for (const auto& shard : impl_->shards) links += shard->links();
  return links;
}

Lsn Engine::visible_lsn(ShardId shard) const {
  TL_ASSERT(shard.value < impl_->options.shards, "no such shard");
  return impl_->shards[shard.value]->visible_lsn();
}

std::uint32_t Engine::shards() const { return impl_->options.shards; }
const Options& Engine::options() const { return impl_->options; }
ShardId Engine::shard_of(std::string_view key) const { return impl_->owner(impl_->hash(key)).id(); }
Reactor& Engine::reactor(ShardId shard) { return impl_->group->reactor({shard.value}); }

}  // namespace tidelock
