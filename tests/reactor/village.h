/// Several reactors on one thread, joined by lanes, with a clock that the test turns and no kernel: the
/// driver that a simulator would be. Each reactor parks by the park protocol and sleeps until it is woken or
/// its timer is due. A seed fixes the order in which they turn.
/// Thread:   one
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/lane_directory.h>
#include <tidelock/reactor/mailbox.h>

#include "null_io.h"

namespace tidelock::test {

class Village {
 public:
  class House final : public Waker {
   public:
    House(Village& village, CoreId id, const ReactorOptions& options, const MailboxOptions& mail)
        : id_(id), village_(village), random_(village.seed_ + id.value) {
      ReactorOptions own = options;
      own.id = id;
      auto made = Reactor::create(own, village.clock, io_, random_);
      REQUIRE(made);
      reactor = *std::move(made);
      mailbox = std::make_unique<Mailbox>(*reactor, village.directory, mail);
      village.directory.set_waker(id, this);
    }

    void wake(CoreId) override {
      woken = true;
      ++wakes;
    }
    bool announce(CoreId from, std::uint64_t data) override {
      if (refuse_announcements > 0) {
        --refuse_announcements;
        if (refuse_announcements % 2 == 0) return false;
        refused.push_back(from);  // the kernel's answer comes later
        return true;
      }
      announced.push_back(data);
      return true;
    }

    /// One turn, unless it sleeps with good reason or the test holds it. True if there was anything to do.
    bool step() {
      if (held) return false;
      for (const CoreId from : refused) {  // a completion in the sender's ring, which ends its sleep
        village_.at(from.value).mailbox->on_announcement_failed(id_);
        village_.at(from.value).woken = true;
      }
      refused.clear();
      if (parked) {
        if (!woken && announced.empty() && next_ > village_.clock.now()) return false;
        village_.directory.park_flag(id_).finish();
        parked = woken = false;
      }
      for (const std::uint64_t data : announced) {
        if (village_.by_event) {
          mailbox->on_event();
        } else {
          mailbox->on_announcement(data);
        }
      }
      announced.clear();
      next_ = reactor->turn();
      ++turns;
      if (next_ == Instant{0}) return true;
      parked = village_.directory.park_flag(id_).prepare([this] { return reactor->has_work(); });
      return true;
    }
    [[nodiscard]] Instant next() const { return next_; }

    std::unique_ptr<Reactor> reactor;
    std::unique_ptr<Mailbox> mailbox;
    bool held = false;  ///< as if its thread were stopped
    bool parked = false;
    bool woken = false;
    std::uint64_t wakes = 0;
    std::uint64_t turns = 0;
    int refuse_announcements = 0;
    std::vector<std::uint64_t> announced;
    std::vector<CoreId> refused;

   private:
    CoreId id_;
    Village& village_;
    NullIoBackend io_;
    Random random_;
    Instant next_{0};
  };

  explicit Village(std::uint32_t cores, const MailboxOptions& mail = {}, std::uint64_t seed = 1,
                   const ReactorOptions& options = Rig::small())
      : directory(cores), by_event(mail.carrier == Carrier::eventfd), seed_(seed), order_(seed) {
    for (std::uint32_t i = 0; i < cores; ++i) {
      turn_order_.push_back(i);
      houses_.push_back(std::make_unique<House>(*this, CoreId{static_cast<std::uint16_t>(i)}, options, mail));
    }
  }
  ~Village() {
    for (auto& house : houses_) {
      house->held = false;
      house->refuse_announcements = 0;
      house->reactor->cancel_all();
    }
    run_for(seconds(1000));
    for (auto& house : houses_) {
      CHECK(house->reactor->idle());
      house->mailbox.reset();
      house->reactor.reset();
    }
    CHECK(lost_wakeups == 0);
  }
  Village(const Village&) = delete;
  Village& operator=(const Village&) = delete;

  [[nodiscard]] House& at(std::size_t core) { return *houses_[core]; }
  [[nodiscard]] Mailbox& mailbox(std::size_t core) { return *houses_[core]->mailbox; }
  [[nodiscard]] std::size_t size() const { return houses_.size(); }
  template <class F>
  void spawn(std::size_t core, F closure) {
    REQUIRE(houses_[core]->reactor->spawn_detached("test", std::move(closure)));
    houses_[core]->woken = true;  // the test is no waker; it just ends the sleep
  }

  /// Turns whoever has something to do; when nobody has, time jumps to the next timer, up to `until`.
  void run_until(Instant until) {
    for (int rounds = 0; rounds < 10'000'000; ++rounds) {
      bool any = false;
      shuffle();
      for (const std::size_t core : turn_order_) any = houses_[core]->step() || any;
      if (any) continue;
      look_for_lost_wakeups();
      Instant next = Instant::never();
      for (const auto& house : houses_) {
        if (!house->held) next = std::min(next, house->next());
      }
      if (next > until) {
        clock.advance_to(until);
        return;
      }
      clock.advance_to(next);
    }
    FAIL("the reactors never came to rest");
  }
  void run_for(Duration span) { run_until(clock.now() + span); }

  ManualClock clock;
  LaneDirectory directory;
  bool by_event;
  std::uint64_t lost_wakeups = 0;

 private:
  void shuffle() {
    for (std::size_t i = turn_order_.size(); i > 1; --i) {
      std::swap(turn_order_[i - 1], turn_order_[order_.below(i)]);
    }
  }
  /// Everybody sleeps. Whoever has work then was let sleep through it.
  void look_for_lost_wakeups() {
    for (const auto& house : houses_) {
      if (!house->held && (house->mailbox->has_settled_work() || house->mailbox->has_work())) ++lost_wakeups;
    }
  }

  std::uint64_t seed_;
  Random order_;
  std::vector<std::size_t> turn_order_;
  std::vector<std::unique_ptr<House>> houses_;
};

}  // namespace tidelock::test
