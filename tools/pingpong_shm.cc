// A ping-pong over the shm link, as two nodes of one machine have it.
#include <algorithm>
#include <chrono>
#include <vector>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/shm.h>

#include "pingpong_lane.h"

namespace tidelock::tools {
namespace {

constexpr Duration kAcceptSlice = milliseconds(100);
constexpr Duration kConnectTimeout = seconds(10);

class ShmLane final : public PingLane {
 public:
  explicit ShmLane(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  Status start(Reactor& reactor) override { return link_->start(reactor); }
  Result<bool> publish(const FrameHeader& header, Bytes payload) override {
    const Status published = link_->publish(header, std::span(&payload, 1));
    if (published) return true;
    if (published.error() == ReplicationErrc::link_full) return false;
    return published.error();
  }
  Result<bool> take_batch(FrameHeader& header) override {
    const auto batch = link_->receive();
    if (batch) {
      header = batch->header;
      link_->release();
      return true;
    }
    if (batch.error() == ReplicationErrc::link_empty) return false;
    return batch.error();
  }
  Result<bool> send(ControlFrame frame) override {
    TL_TRY(link_->send_control(frame));
    return true;
  }
  Result<bool> take_control(ControlFrame& frame) override {
    const auto received = link_->receive_control();
    if (received) {
      frame = *received;
      return true;
    }
    if (received.error() == ReplicationErrc::link_empty) return false;
    return received.error();
  }
  void close(const std::string& reason) override { link_->close(reason); }

  std::uint32_t poll(std::uint32_t budget) override { return link_->poll(budget); }
  void flush() override { link_->flush(); }
  void arm() override { link_->arm(); }
  void disarm() override { link_->disarm(); }
  [[nodiscard]] bool has_work() const override { return link_->has_work(); }
  [[nodiscard]] std::string describe() const { return link_->describe(); }

 private:
  std::unique_ptr<Link> link_;
};

class ShmSession final : public PingSession {
 public:
  explicit ShmSession(const PingpongOptions& options) : options_(options) {}

  Status open() {
    TL_TRY(group_, start_ping_reactor(options_));
    link_options_.ring_bytes = kPingRingBytes;
    if (!options_.is_server()) return {};
    memory_.resize(kPingBytesMax);
    TL_TRY(listener_, transport_->listen(options_.shm_address(), link_options_));
    return {};
  }
  ~ShmSession() override {
    // The lane's link leaves on its core, where its watches are.
    if (lane_)
      static_cast<void>(group_->run(
          CoreId{0}, [this] { lane_.reset(); }, seconds(10)));
  }

  Result<PingLane*> meet(PingTerms& terms, const std::atomic<bool>& stop) override {
    TL_TRY(auto link, options_.is_server() ? await(terms, stop) : connect(terms));
    lane_ = std::make_unique<ShmLane>(std::move(link));
    return lane_.get();
  }
  [[nodiscard]] PingFacts facts() const override {
    PingFacts facts;
    facts.link = lane_ ? lane_->describe() : "shm";
    (options_.is_server() ? facts.local : facts.remote) = address();
    return facts;
  }
  [[nodiscard]] std::string address() const override {
    return options_.is_server() ? options_.shm_address() : options_.server;
  }
  [[nodiscard]] Bytes memory() const override { return memory_; }
  [[nodiscard]] ReactorGroup& group() override { return *group_; }

 private:
  Result<std::unique_ptr<Link>> await(PingTerms& terms, const std::atomic<bool>& stop) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.patience().ns);
    for (;;) {
      if (stop) return Error::from_errno(ECANCELED, "interrupted while waiting for a client");
      auto peer = listener_->accept(kAcceptSlice);
      if (!peer && !(peer.error() == ReactorErrc::deadline_exceeded)) return peer.error();
      if (peer) {
        Refusal refusal;
        const auto wanted = terms_of((*peer)->hello(), refusal);
        if (wanted) {
          terms = *wanted;
          return (*peer)->accept(hello_of(terms, NodeRole::primary), link_options_);
        }
        (*peer)->refuse(refusal);
      }
      if (std::chrono::steady_clock::now() < until) continue;
      return Error(ReactorErrc::deadline_exceeded,
                   "no client came: start one with \"tidelock pingpong --link shm " + address() +
                       "\", or wait longer (--timeout)");
    }
  }
  Result<std::unique_ptr<Link>> connect(const PingTerms& terms) {
    auto peer = transport_->connect(options_.server, hello_of(terms, NodeRole::replica),
                                    std::min(options_.patience(), kConnectTimeout));
    if (!peer) {
      return Error(peer.error().code(), "no server answers at " + options_.server + ": " +
                                            peer.error().message() +
                                            "; start one there with \"tidelock pingpong --link shm\"");
    }
    TL_TRY(check_server(peer->hello));
    return std::move(peer->link);
  }

  PingpongOptions options_;
  LinkOptions link_options_;
  std::vector<std::byte> memory_;
  std::unique_ptr<ReactorGroup> group_;
  std::unique_ptr<Transport> transport_ = make_shm_transport();
  std::unique_ptr<PeerListener> listener_;
  std::unique_ptr<ShmLane> lane_;
};

}  // namespace

Result<std::unique_ptr<ReactorGroup>> start_ping_reactor(const PingpongOptions& options) {
  ReactorGroupOptions group;
  group.pin = options.cpu >= 0;
  if (group.pin) group.cpus = {static_cast<std::uint32_t>(options.cpu)};
  group.overprovisioned = options.overprovisioned;
  // A park in the middle of a measurement would be what is measured.
  group.spin = seconds(3'600);
  return ReactorGroup::start(group);
}

Result<std::unique_ptr<PingSession>> open_shm_session(const PingpongOptions& options) {
  auto session = std::make_unique<ShmSession>(options);
  TL_TRY(session->open());
  return std::unique_ptr<PingSession>(std::move(session));
}

}  // namespace tidelock::tools
