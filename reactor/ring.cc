#include <cerrno>
#include <string>

#include <tidelock/reactor/ring.h>

#include "ring_state.h"

namespace tidelock {

UringBackend::State::State(const UringOptions& options)
    : operations(options.max_operations), sends(options.max_operations) {
  for (std::uint32_t i = options.max_operations; i-- > 0;) {
    operations[i].next_free = free_operation;
    free_operation = i;
    sends[i].next_free = free_send;
    free_send = i;
  }
}

UringBackend::State::~State() {
  if (ring_open) io_uring_queue_exit(&ring);
}

UringBackend::UringBackend(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<UringBackend>> UringBackend::create(const UringOptions& options) {
  if (options.entries < 8 || options.entries > 32'768) {
    return Error::from_errno(EINVAL,
                             "ring entries must be from 8 to 32768, not " + std::to_string(options.entries));
  }
  if (options.max_operations == 0 || options.max_operations >= kSlotLimit) {
    return Error::from_errno(EINVAL, "operations in flight must be from 1 to " +
                                         std::to_string(kSlotLimit - 1) + ", not " +
                                         std::to_string(options.max_operations));
  }
  auto state = std::make_unique<State>(options);
  TL_TRY(state->open(options));
  return std::unique_ptr<UringBackend>(new UringBackend(std::move(state)));
}

UringBackend::~UringBackend() {
  TL_ASSERT(state_->in_flight == 0,
            "operations are in flight: cancel them and await their completions first");
}

Result<IoToken> UringBackend::submit(const IoRequest& request, IoCompletion& completion) {
  return state_->submit(request, completion);
}

void UringBackend::cancel(IoToken token) { state_->cancel(token); }

std::uint32_t UringBackend::poll(std::uint32_t budget) { return state_->poll(budget); }

void UringBackend::flush() { state_->flush(); }

bool UringBackend::has_work() const {
  // What the kernel refused at the last flush is work, too: the next turn offers it again.
  return state_->completions_ready() || (state_->sq_flags() & kEntryWanted) != 0 ||
         io_uring_sq_ready(&state_->ring) != 0 || state_->cancels_wanted != 0;
}

std::uint32_t UringBackend::in_flight() const { return state_->in_flight + state_->sends_in_flight; }

void UringBackend::on_message(MessageHandler handler, void* context) {
  state_->message_handler = handler;
  state_->message_context = context;
}

Status UringBackend::send_message(int target_ring_fd, std::uint64_t data, SendFailed failed, void* context) {
  return state_->send(target_ring_fd, data, failed, context);
}

Status UringBackend::send_from_host(int target_ring_fd, std::uint64_t data) {
  TL_ASSERT(data <= kPayloadMask, "a message carries 56 bits");
  io_uring_sqe sqe{};
  prepare_message(sqe, target_ring_fd, data);
  // "Blind" opcodes take -1 in place of a ring.
  const int result = io_uring_register(~0U, kRegisterSendMsgRing, &sqe, 1);
  if (result == -EINVAL)
    return Error::from_errno(EOPNOTSUPP, "the kernel cannot send MSG_RING without a ring");
  if (result < 0) return Error::from_errno(-result, "MSG_RING to ring " + std::to_string(target_ring_fd));
  return {};
}

WaitEnd UringBackend::wait(Duration timeout) { return state_->wait(timeout); }

int UringBackend::fd() const { return state_->ring.ring_fd; }

const UringFeatures& UringBackend::features() const { return state_->features; }

const std::vector<std::string>& UringBackend::notices() const { return state_->notices; }

const UringStats& UringBackend::stats() const { return state_->stats; }

}  // namespace tidelock
