#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <string>

#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/reactor.h>

#include "operation_pool.h"

namespace tidelock {

struct OperationPool::Slot final : IoCompletion {
  void on_completion(std::int32_t outcome, bool) override {
    result = outcome;
    completed = true;
    if (detached) {
      pool->give_back(*this);
    } else {
      waiter.notify_one();
    }
  }

  OperationPool* pool = nullptr;
  Slot* next_free = nullptr;
  std::byte* buffer = nullptr;
  WaitQueue waiter;
  std::int32_t result = 0;
  bool completed = false;
  bool detached = false;
};

OperationPool::OperationPool(Reactor& reactor, std::uint32_t slots)
    : reactor_(reactor),
      slots_count_(slots),
      slots_(std::make_unique<Slot[]>(slots)),
      buffer_blocks_((slots + kBlockSlots - 1) / kBlockSlots) {
  // The first slots lie on top, so that a reactor with few operations keeps to few buffers.
  for (std::uint32_t i = slots_count_; i-- > 0;) {
    slots_[i].pool = this;
    slots_[i].next_free = free_;
    free_ = &slots_[i];
  }
}

OperationPool::~OperationPool() { TL_ASSERT(idle(), "the kernel still owns operation slots"); }

OperationPool::Slot* OperationPool::take(bool with_buffer) {
  Slot* slot = free_;
  if (slot == nullptr) return nullptr;
  if (with_buffer && slot->buffer == nullptr) {
    const auto index = static_cast<std::size_t>(slot - slots_.get());
    auto& block = buffer_blocks_[index / kBlockSlots];
    if (block == nullptr) {
      block.reset(new (std::nothrow) std::byte[std::size_t{kBlockSlots} * kBufferBytes]);
      if (block == nullptr) return nullptr;
    }
    slot->buffer = block.get() + (index % kBlockSlots) * kBufferBytes;
  }
  free_ = slot->next_free;
  slot->completed = false;
  slot->detached = false;
  ++in_use_;
  return slot;
}

void OperationPool::give_back(Slot& slot) {
  slot.next_free = free_;
  free_ = &slot;
  --in_use_;
}

Result<std::uint32_t> OperationPool::run(const IoRequest& request, MutableBytes into, Bytes from,
                                         Instant deadline) {
  // Whoever no longer waits must not start anything either.
  if (this_fiber::cancelled()) return ReactorErrc::cancelled;
  if (deadline <= reactor_.now()) return ReactorErrc::deadline_exceeded;
  Slot* slot = take(!into.empty() || !from.empty());
  if (slot == nullptr) return ReactorErrc::out_of_operations;
  IoRequest staged = request;
  staged.buffer = slot->buffer;
  if (!from.empty()) std::copy(from.begin(), from.end(), slot->buffer);
  auto token = reactor_.io().submit(staged, *slot);
  if (!token) {
    give_back(*slot);
    return token.error();
  }
  const Wakeup wakeup = slot->waiter.wait(deadline);
  if (!slot->completed) {
    // From here on only the completion may free the slot: the kernel still knows its buffer.
    slot->detached = true;
    reactor_.io().cancel(*token);
    return to_status(wakeup).error();
  }
  // A completion that came together with the deadline or the cancellation did take effect, so it is reported.
  const std::int32_t result = slot->result;
  if (result > 0 && !into.empty()) std::copy_n(slot->buffer, result, into.begin());
  give_back(*slot);
  if (result < 0) return Error::from_errno(-result, "I/O on descriptor " + std::to_string(request.fd));
  return static_cast<std::uint32_t>(result);
}

namespace io {
namespace {

Result<std::uint32_t> run(IoRequest request, MutableBytes into, Bytes from, Instant deadline) {
  Reactor* reactor = Reactor::current();
  if (reactor == nullptr) return ReactorErrc::not_on_reactor;
  return reactor->operations().run(request, into, from, deadline);
}

}  // namespace

Status nop(Instant deadline) {
  TL_TRY(run({.kind = IoRequest::Kind::nop}, {}, {}, deadline));
  return {};
}

Result<std::uint32_t> poll(int fd, std::uint32_t events, Instant deadline) {
  return run({.kind = IoRequest::Kind::poll, .fd = fd, .poll_events = events}, {}, {}, deadline);
}

Result<std::uint32_t> read(int fd, MutableBytes into, Instant deadline) {
  const MutableBytes part = into.first(std::min<std::size_t>(into.size(), OperationPool::kBufferBytes));
  const auto bytes = static_cast<std::uint32_t>(part.size());
  return run({.kind = IoRequest::Kind::read, .fd = fd, .buffer_bytes = bytes}, part, {}, deadline);
}

Result<std::uint32_t> write(int fd, Bytes from, Instant deadline) {
  const Bytes part = from.first(std::min<std::size_t>(from.size(), OperationPool::kBufferBytes));
  const auto bytes = static_cast<std::uint32_t>(part.size());
  return run({.kind = IoRequest::Kind::write, .fd = fd, .buffer_bytes = bytes}, {}, part, deadline);
}

}  // namespace io

/// Lives from start() until the kernel has answered the last poll and the watch has stopped.
class FdWatch::Slot final : public IoCompletion {
 public:
  Slot(Reactor& reactor, int fd, std::uint32_t events, Handler handler, void* context)
      : reactor_(reactor), fd_(fd), events_(events), handler_(handler), context_(context), retry_(this) {
    reactor_.operations().watch_began();
  }
  ~Slot() { reactor_.operations().watch_ended(); }

  Status arm() {
    const IoRequest request{.kind = IoRequest::Kind::poll_multishot, .fd = fd_, .poll_events = events_};
    TL_TRY(token_, reactor_.io().submit(request, *this));
    in_kernel_ = true;
    return {};
  }

  void stop() {
    stopped_ = true;
    retry_.disarm();
    if (in_kernel_) reactor_.io().cancel(token_);
    free_if_unused();
  }

  void on_completion(std::int32_t result, bool more) override {
    in_kernel_ = more;
    if (!stopped_) {
      in_handler_ = true;
      if (result >= 0) {
        handler_(context_, static_cast<std::uint32_t>(result));
      } else if (is_final(result)) {
        handler_(context_, POLLERR);
      }
      in_handler_ = false;
      // Arming looks at the descriptor anew, so what became ready since the kernel ended the poll is seen.
      if (!stopped_ && !more && !is_final(result)) rearm(result);
    }
    free_if_unused();
  }

 private:
  struct RetryTimer : Timer {
    explicit RetryTimer(Slot* owner) : Timer(&RetryTimer::fired), slot(owner) {}
    static void fired(Timer& timer) { static_cast<RetryTimer&>(timer).slot->rearm(0); }
    Slot* slot;
  };

  /// Errors that a new poll would only repeat: the descriptor is closed or cannot be polled.
  static bool is_final(std::int32_t result) {
    return result < 0 && result != -ENOMEM && result != -EAGAIN && result != -EBUSY && result != -EINTR &&
           result != -ECANCELED;
  }

  void rearm(std::int32_t result) {
    constexpr Duration kRetry = milliseconds(1);
    const bool at_once = result != -ENOMEM && result != -EAGAIN && result != -EBUSY;
    if (at_once && arm()) return;
    reactor_.timers().arm(retry_, reactor_.now() + kRetry);
  }

  void free_if_unused() {
    if (stopped_ && !in_kernel_ && !in_handler_) delete this;
  }

  Reactor& reactor_;
  int fd_;
  std::uint32_t events_;
  Handler handler_;
  void* context_;
  IoToken token_{};
  RetryTimer retry_;
  bool in_kernel_ = false;
  bool in_handler_ = false;
  bool stopped_ = false;
};

Status FdWatch::start(Reactor& reactor, int fd, std::uint32_t events, Handler handler, void* context) {
  TL_ASSERT(slot_ == nullptr, "start of a watch that is active");
  auto slot = std::make_unique<Slot>(reactor, fd, events, handler, context);
  TL_TRY(slot->arm());
  slot_ = slot.release();
  return {};
}

void FdWatch::stop() {
  if (slot_ != nullptr) std::exchange(slot_, nullptr)->stop();
}

}  // namespace tidelock
