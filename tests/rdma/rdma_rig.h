/// Two cores of two devices on one thread: the active side (a replica: it connects and receives batches) and
/// the passive one. fake_rig.h puts them on the fake provider in virtual time, device_rig.h on real devices.
/// Thread:   one
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>
#include <tidelock/rdma/listener.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/ring.h>

namespace tidelock::test {

class RdmaSide {
 public:
  RdmaSide(Clock& clock, std::shared_ptr<BlockingCalls> calls, const std::string& device,
           const RdmaOptions& options) {
    auto ring = UringBackend::create({});
    if (!ring) FAIL(ring.error().message());
    io_ = *std::move(ring);
    auto made = Reactor::create({}, clock, *io_, random_);
    if (!made) FAIL(made.error().message());
    reactor_ = *std::move(made);
    const auto place = choose_rdma_place({device, ""});
    if (!place) FAIL(place.error().message());
    auto core = RdmaCore::create(*place, options, std::move(calls));
    if (!core) FAIL(core.error().message());
    core_ = *std::move(core);
  }

  void start() { REQUIRE(core_->start(*reactor_)); }
  void turn() { reactor_->turn(); }
  [[nodiscard]] RdmaCore& core() { return *core_; }
  [[nodiscard]] Reactor& reactor() { return *reactor_; }
  void end() {
    core_->detach();
    for (int i = 0; i < 1000 && !reactor_->idle(); ++i) {
      reactor_->turn();
      if (!reactor_->idle()) io_->wait(milliseconds(1));
    }
    core_.reset();
  }

 private:
  Random random_{1};
  std::unique_ptr<UringBackend> io_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<RdmaCore> core_;
};

class RdmaRig {
 public:
  static constexpr std::uint16_t kPort = 7471;

  RdmaRig(Clock& clock, std::shared_ptr<BlockingCalls> passive_calls,
          std::shared_ptr<BlockingCalls> active_calls, const std::string& passive_device,
          const std::string& active_device, const RdmaOptions& passive_options,
          const RdmaOptions& active_options)
      : passive(clock, std::move(passive_calls), passive_device, passive_options),
        active(clock, std::move(active_calls), active_device, active_options),
        log(1 << 20) {
    REQUIRE(passive.core().register_memory(log));
    passive.start();
    active.start();
    answer = [](RdmaConnection& connection) {
      Greeting ack{};
      ack[0] = std::byte{2};
      connection.accept(ack);
    };
  }
  virtual ~RdmaRig() = default;
  RdmaRig(const RdmaRig&) = delete;
  RdmaRig& operator=(const RdmaRig&) = delete;

  void listen(const PassiveTerms& terms = default_terms()) {
    auto opened = RdmaListener::open(
        passive.core(), passive.core().place().address, kPort, terms,
        [this](ShardId) { return &passive.core(); },
        [this](ShardId) {
          return ConnectionCallbacks{[this](RdmaConnection& connection, Bytes greeting) {
                                       accepted = &connection;
                                       heard_hello.assign(greeting.begin(), greeting.end());
                                       if (answer) answer(connection);
                                     },
                                     [this](RdmaConnection& connection, Bytes) {
                                       passive_error = connection.error().message();
                                       connection.abandon();
                                       if (accepted == &connection) accepted = nullptr;
                                     }};
        });
    if (!opened) FAIL(opened.error().message());
    listener = *std::move(opened);
    listener->start([this](const Error& error) { passive_error = error.message(); });
  }

  static PassiveTerms default_terms() {
    PassiveTerms terms;
    terms.shard_count = 2;
    terms.node = 1;
    terms.epoch = {3, 1};
    terms.ring_bytes = kRingBytesMin;
    return terms;
  }
  [[nodiscard]] ActiveTerms default_active() {
    ActiveTerms terms;
    terms.address = passive.core().place().address;
    terms.port = kPort;
    terms.request.shard = {1};
    terms.request.shard_count = 2;
    terms.request.node = 2;
    terms.request.generation = {1};
    terms.request.incarnation = 99;
    terms.greeting[0] = std::byte{1};
    return terms;
  }

  /// The active side's attempt; see `connecting`, `connected`, `active_error`.
  void connect() { connect(default_active()); }
  void connect(const ActiveTerms& terms) {
    connected = nullptr;
    active_error.clear();
    auto made = active.core().connect(terms, {[this](RdmaConnection& connection, Bytes greeting) {
                                                connected = &connection;
                                                heard_ack.assign(greeting.begin(), greeting.end());
                                              },
                                              [this](RdmaConnection& connection, Bytes reason) {
                                                active_error = connection.error().message();
                                                active_code = connection.error().code();
                                                heard_refusal.assign(reason.begin(), reason.end());
                                                connection.abandon();
                                                connecting = nullptr;
                                              }});
    if (!made) FAIL(made.error().message());
    connecting = *made;
  }
  /// Both sides ready.
  void establish() {
    connect();
    if (!run_until([this] { return both_ready(); })) FAIL(active_error, " / ", passive_error);
  }
  [[nodiscard]] bool both_ready() const {
    return connected != nullptr && connected->ready() && accepted != nullptr && accepted->ready();
  }

  virtual void turn() {
    passive.turn();
    active.turn();
  }
  /// Turns until `done()`; false if that does not come within the rig's patience.
  virtual bool run_until(const std::function<bool()>& done) = 0;

  void abandon_all() {
    if (connected != nullptr) {
      connected->abandon();
    } else if (connecting != nullptr) {
      connecting->abandon();
    }
    if (accepted != nullptr) accepted->abandon();
    connected = connecting = accepted = nullptr;
  }

  RdmaSide passive;
  RdmaSide active;
  std::vector<std::byte> log;  ///< the passive side's, registered
  std::unique_ptr<RdmaListener> listener;
  std::function<void(RdmaConnection&)> answer;

  RdmaConnection* accepted = nullptr;
  RdmaConnection* connected = nullptr;
  RdmaConnection* connecting = nullptr;
  std::vector<std::byte> heard_hello, heard_ack, heard_refusal;
  std::string active_error, passive_error;
  std::error_code active_code;
};

}  // namespace tidelock::test
