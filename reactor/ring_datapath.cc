#include <algorithm>
#include <cerrno>

#include <tidelock/base/counter.h>

#include "ring_state.h"

namespace tidelock {
namespace {

/// How often one flush tries again while the kernel has no memory or no room.
constexpr int kRefusalsTolerated = 16;

std::uint64_t operation_user_data(std::uint32_t slot, std::uint32_t generation) {
  return make_user_data(CqeKind::operation, (std::uint64_t{generation} << kGenerationShift) | slot);
}

void prepare_operation(io_uring_sqe* sqe, const IoRequest& request, bool multishot_poll) {
  switch (request.kind) {
    case IoRequest::Kind::nop:
      io_uring_prep_nop(sqe);
      break;
    case IoRequest::Kind::poll:
      io_uring_prep_poll_add(sqe, request.fd, request.poll_events);
      break;
    case IoRequest::Kind::poll_multishot:
      // Without the kernel's help the first completion says that no more will follow, and the watch re-arms.
      io_uring_prep_poll_add(sqe, request.fd, request.poll_events);
      if (multishot_poll) sqe->len = IORING_POLL_ADD_MULTI;
      break;
    case IoRequest::Kind::read:
      io_uring_prep_read(sqe, request.fd, request.buffer, request.buffer_bytes, request.offset);
      break;
    case IoRequest::Kind::write:
      io_uring_prep_write(sqe, request.fd, request.buffer, request.buffer_bytes, request.offset);
      break;
  }
}

}  // namespace

void prepare_message(io_uring_sqe& sqe, int target_ring_fd, std::uint64_t data) {
  io_uring_prep_msg_ring(&sqe, target_ring_fd, 0, make_user_data(CqeKind::message, data), 0);
}

// ---- submission ----

io_uring_sqe* UringBackend::State::next_sqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  if (sqe == nullptr) {
    flush();
    sqe = io_uring_get_sqe(&ring);
  }
  return sqe;
}

Result<IoToken> UringBackend::State::submit(const IoRequest& request, IoCompletion& completion) {
  const std::uint32_t slot = free_operation;
  if (slot == kNone) return ReactorErrc::out_of_operations;
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return ReactorErrc::out_of_operations;
  Operation& operation = operations[slot];
  free_operation = operation.next_free;
  operation.completion = &completion;
  operation.cancel_wanted = false;
  prepare_operation(sqe, request, features.multishot_poll);
  sqe->user_data = operation_user_data(slot, operation.generation);
  ++in_flight;
  return IoToken{slot, operation.generation};
}

void UringBackend::State::cancel(IoToken token) {
  if (token.slot >= operations.size()) return;
  Operation& operation = operations[token.slot];
  if (operation.completion == nullptr || operation.generation != token.generation) return;
  if (operation.cancel_wanted || stage_cancel(token.slot)) return;
  operation.cancel_wanted = true;
  ++cancels_wanted;
}

bool UringBackend::State::stage_cancel(std::uint32_t slot) {
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return false;
  io_uring_prep_cancel64(sqe, operation_user_data(slot, operations[slot].generation), 0);
  sqe->user_data = make_user_data(CqeKind::cancel, 0);
  if ((ring.features & IORING_FEAT_CQE_SKIP) != 0) sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
  return true;
}

/// Only after the kernel refused submissions for a while, so the scan does not matter.
void UringBackend::State::retry_cancels() {
  for (std::uint32_t slot = 0; slot < operations.size() && cancels_wanted > 0; ++slot) {
    if (!operations[slot].cancel_wanted) continue;
    if (io_uring_sq_space_left(&ring) == 0) return;
    operations[slot].cancel_wanted = false;
    --cancels_wanted;
    stage_cancel(slot);
  }
}

void UringBackend::State::flush() {
  if (cancels_wanted > 0) retry_cancels();
  int refusals = 0;
  for (unsigned staged = io_uring_sq_ready(&ring); staged > 0; staged = io_uring_sq_ready(&ring)) {
    read_flags_and_count();
    bump(stats.enters);
    const int result = io_uring_submit(&ring);
    if (result > 0) {
      bump(stats.submitted, static_cast<unsigned>(result));
      if (static_cast<unsigned>(result) < staged) bump(stats.short_submits);
    } else if (!handle_refusal(-result, ++refusals)) {
      return;  // what is staged stays so, and the next flush offers it again
    }
  }
}

/// The kernel took nothing. True if another attempt makes sense now.
bool UringBackend::State::handle_refusal(int error, int attempt) {
  TL_ASSERT(error != EEXIST, "a ring is used on another thread than the one that created it");
  TL_ASSERT(error == 0 || error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM,
            "io_uring_enter failed in a way that has no retry");
  bump(stats.busy_retries);
  if (attempt > kRefusalsTolerated) return false;
  // EBUSY and EAGAIN: too many completions wait for room. Handlers must not run here, inside of a fiber
  // perhaps, so the completions are only moved out of the kernel's way.
  if (error != EINTR) set_completions_aside();
  return true;
}

Status UringBackend::State::send(int target_ring_fd, std::uint64_t data, SendFailed failed, void* context) {
  TL_ASSERT(data <= kPayloadMask, "a message carries 56 bits");
  if (!features.msg_ring) {
    return Error::from_errno(EOPNOTSUPP, "this ring has no MSG_RING: use the eventfd carrier");
  }
  const std::uint32_t sender = data == 0 ? sender_index(failed, context) : kNone;
  if (sender == kNone && free_send == kNone) {
    return Error::from_errno(EAGAIN,
                             "all messages of this ring are in flight: send again after a completion");
  }
  io_uring_sqe* sqe = next_sqe();
  if (sqe == nullptr) return Error::from_errno(EAGAIN, "the kernel takes no submissions: send again later");
  prepare_message(*sqe, target_ring_fd, data);
  if (sender != kNone) {
    // A wakeup that succeeds must not cost its sender a completion, nor keep it from parking.
    sqe->user_data = make_user_data(CqeKind::wakeup, sender);
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
  } else {
    const std::uint32_t slot = free_send;
    Send& send = sends[slot];
    free_send = send.next_free;
    send = {failed, context, data, kNone};
    ++sends_in_flight;
    sqe->user_data = make_user_data(CqeKind::send, slot);
  }
  flush();
  return {};
}

/// Wakeups that succeed leave no completion, so what a failure needs is kept once a sender, for good.
std::uint32_t UringBackend::State::sender_index(SendFailed failed, void* context) {
  const auto same = [&](const Send& send) { return send.failed == failed && send.context == context; };
  const auto found = std::find_if(wakeup_senders.begin(), wakeup_senders.end(), same);
  if (found != wakeup_senders.end()) return static_cast<std::uint32_t>(found - wakeup_senders.begin());
  if (wakeup_senders.size() == kWakeupSenders) return kNone;
  wakeup_senders.push_back({failed, context, 0, kNone});
  return static_cast<std::uint32_t>(wakeup_senders.size() - 1);
}

// ---- completion ----

/// Called before every entry, since each of them may end the overflow.
unsigned UringBackend::State::read_flags_and_count() {
  const unsigned flags = sq_flags();
  const bool overflow = (flags & IORING_SQ_CQ_OVERFLOW) != 0;
  if (overflow && !in_overflow) bump(stats.cq_overflows);
  in_overflow = overflow;
  return flags;
}

/// Work that only an entry into the kernel can bring into the CQ.
bool UringBackend::State::kernel_wants_entry() { return (read_flags_and_count() & kEntryWanted) != 0; }

void UringBackend::State::enter_for_events() {
  bump(stats.enters);
  const int result = io_uring_get_events(&ring);
  // The flag that brought us here is still set if nothing was done, so the next poll comes back.
  if (result < 0) handle_refusal(-result, kRefusalsTolerated + 1);
}

std::uint32_t UringBackend::State::poll(std::uint32_t budget) {
  // The usual answer of a reactor that spins, from two lines that the kernel seldom writes.
  if (!completions_ready() && !in_overflow && (sq_flags() & kEntryWanted) == 0) return 0;
  std::uint32_t handled = drain_set_aside(budget);
  handled += drain_ring(budget - handled);
  // Completions that found the CQ full come back in as many entries as it takes: none is lost.
  while (handled < budget && kernel_wants_entry()) {
    enter_for_events();
    const std::uint32_t more = drain_ring(budget - handled);
    if (more == 0) break;
    handled += more;
  }
  return handled;
}

std::uint32_t UringBackend::State::drain_ring(std::uint32_t budget) {
  std::uint32_t handled = 0;
  while (handled < budget && io_uring_cq_ready(&ring) != 0) {
    const io_uring_cqe& entry = ring.cq.cqes[*ring.cq.khead & ring.cq.ring_mask];
    const Cqe cqe{entry.user_data, entry.res, entry.flags};
    // Given back before the handler runs: the handler may submit, and that may need the room.
    io_uring_cq_advance(&ring, 1);
    dispatch(cqe);
    ++handled;
  }
  return handled;
}

void UringBackend::State::set_completions_aside() {
  while (io_uring_cq_ready(&ring) != 0) {
    const io_uring_cqe& entry = ring.cq.cqes[*ring.cq.khead & ring.cq.ring_mask];
    set_aside.push_back({entry.user_data, entry.res, entry.flags});
    io_uring_cq_advance(&ring, 1);
  }
  read_flags_and_count();
  bump(stats.enters);
  io_uring_get_events(&ring);
}

std::uint32_t UringBackend::State::drain_set_aside(std::uint32_t budget) {
  std::uint32_t handled = 0;
  while (handled < budget && set_aside_next < set_aside.size()) {
    const Cqe cqe = set_aside[set_aside_next++];
    dispatch(cqe);
    ++handled;
  }
  if (set_aside_next == set_aside.size()) {
    set_aside.clear();
    set_aside_next = 0;
  }
  return handled;
}

void UringBackend::State::dispatch(const Cqe& cqe) {
  switch (static_cast<CqeKind>(cqe.user_data >> kKindShift)) {
    case CqeKind::operation:
      complete_operation(cqe);
      break;
    case CqeKind::message:
      if ((cqe.user_data & kPayloadMask) != 0 && message_handler != nullptr) {
        message_handler(message_context, cqe.user_data & kPayloadMask);
      }
      break;
    case CqeKind::send:
      complete_send(cqe);
      break;
    case CqeKind::wakeup: {
      const Send sender = wakeup_senders[static_cast<std::uint32_t>(cqe.user_data & kPayloadMask)];
      if (cqe.result < 0 && sender.failed != nullptr) sender.failed(sender.context, 0);
      break;
    }
    case CqeKind::cancel:
    case CqeKind::probe:
      break;
  }
}

void UringBackend::State::complete_operation(const Cqe& cqe) {
  const auto slot = static_cast<std::uint32_t>(cqe.user_data & (kSlotLimit - 1));
  const auto generation = static_cast<std::uint32_t>((cqe.user_data & kPayloadMask) >> kGenerationShift);
  Operation& operation = operations[slot];
  if (operation.completion == nullptr || operation.generation != generation) return;
  bump(stats.completed);
  IoCompletion& completion = *operation.completion;
  const bool more = (cqe.flags & IORING_CQE_F_MORE) != 0;
  if (!more) {
    // Freed first: the handler may submit again, and tokens of this operation are stale from here on.
    if (operation.cancel_wanted) --cancels_wanted;
    operation.cancel_wanted = false;
    operation.completion = nullptr;
    ++operation.generation;
    operation.next_free = free_operation;
    free_operation = slot;
    --in_flight;
  }
  completion.on_completion(cqe.result, more);
}

void UringBackend::State::complete_send(const Cqe& cqe) {
  const auto slot = static_cast<std::uint32_t>(cqe.user_data & kPayloadMask);
  const Send send = sends[slot];
  sends[slot].next_free = free_send;
  free_send = slot;
  --sends_in_flight;
  if (cqe.result < 0 && send.failed != nullptr) send.failed(send.context, send.data);
}

// ---- sleeping ----

WaitEnd UringBackend::State::wait(Duration timeout) {
  flush();
  if (completions_ready()) return WaitEnd::completion;
  const std::int64_t ns = std::max<std::int64_t>(timeout.ns, 0);
  __kernel_timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  io_uring_getevents_arg argument{};
  argument.ts = reinterpret_cast<std::uintptr_t>(&limit);
  bump(stats.enters);
  // With EXT_ARG the signal mask's place holds this structure. Completions that wait outside of the ring
  // (TASKRUN, overflow) end the sleep, too.
  const int result = io_uring_enter2(static_cast<unsigned>(ring.ring_fd), 0, 1,
                                     IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                     reinterpret_cast<sigset_t*>(&argument), sizeof argument);
  if (result < 0 && result != -ETIME) handle_refusal(-result, kRefusalsTolerated + 1);
  if (completions_ready()) return WaitEnd::completion;
  return result == -ETIME ? WaitEnd::timeout : WaitEnd::interrupted;
}

}  // namespace tidelock
