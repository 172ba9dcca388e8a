/// The order in which a primary hands over: it holds writes back until the successor has applied all of them,
/// ends its epoch for good, and only then says `lead`. The successor's candidacy ends the leases of that
/// epoch, so nothing may be read or committed in it any more by then.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>

#include <tidelock/base/ids.h>
#include <tidelock/base/time.h>

namespace tidelock {

class Handover {
 public:
  enum class Step : std::uint8_t {
    hold,    ///< nothing is appended; reads go on
    end,     ///< now: Leases::end(), no commit any more; then `lead` to the successor, then as deposed
    resume,  ///< it took too long, or the successor is gone: the epoch goes on as if nothing had been asked
  };

  /// `last`: of this primary's log, to which nothing is appended from here on. `until`: writes are held back
  /// no longer than that.
  Handover(std::uint32_t successor, Lsn last, Instant until)
      : successor_(successor), last_(last), until_(until) {}

  [[nodiscard]] std::uint32_t successor() const { return successor_; }
  /// Once it has said `end` it says nothing else.
  [[nodiscard]] Step step() const { return step_; }

  /// A whole node acknowledged that.
  Step applied(std::uint32_t node, Lsn lsn) {
    if (step_ == Step::hold && node == successor_ && lsn >= last_) step_ = Step::end;
    return step_;
  }
  Step gone(std::uint32_t node) {
    if (step_ == Step::hold && node == successor_) step_ = Step::resume;
    return step_;
  }
  Step turn(Instant now) {
    if (step_ == Step::hold && now >= until_) step_ = Step::resume;
    return step_;
  }

 private:
  std::uint32_t successor_;
  Lsn last_;
  Instant until_;
  Step step_ = Step::hold;
};

}  // namespace tidelock
