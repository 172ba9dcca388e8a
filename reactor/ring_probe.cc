#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>

#include <sys/resource.h>

#include "ring_state.h"

namespace tidelock {
namespace {

struct FlagSet {
  unsigned flags;
  const char* missing;  ///< what a ring without the flags of the steps before does instead
};

/// Tried in this order; the kernel answers EINVAL to a flag that it does not know. COOP_TASKRUN never comes
/// without TASKRUN_FLAG: a loop that only looks at its CQ would not learn of pending work.
constexpr std::array<FlagSet, 3> kFlagSets{{
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, nullptr},
    {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
     "io_uring: no SINGLE_ISSUER (Linux 6.0): the kernel takes its submission lock at each entry"},
    {0, "io_uring: no COOP_TASKRUN (Linux 5.19): the kernel interrupts the core for each completion"},
}};

int read_io_uring_disabled() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  int value = 0;
  return file >> value ? value : 0;
}

Error explain_refusal(int error) {
  switch (error) {
    case EPERM: {
      const int disabled = read_io_uring_disabled();
      if (disabled == 0) {
        return {
            ReactorErrc::io_uring_unavailable,
            "io_uring_setup is not permitted: allow io_uring_setup, io_uring_enter and io_uring_register in "
            "the seccomp profile of this container or service"};
      }
      return {ReactorErrc::io_uring_unavailable, "kernel.io_uring_disabled is " + std::to_string(disabled) +
                                                     ": run sysctl -w kernel.io_uring_disabled=0"};
    }
    case ENOSYS:
      return {ReactorErrc::io_uring_unavailable,
              "the kernel has no io_uring_setup: use Linux 5.11 or later, or allow io_uring_setup, "
              "io_uring_enter "
              "and io_uring_register in the seccomp profile of this container or service"};
    case ENOMEM: {
      rlimit limit{};
      ::getrlimit(RLIMIT_MEMLOCK, &limit);
      const std::string now =
          limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / 1024) + " KiB";
      return {ReactorErrc::io_uring_unavailable,
              "no memory for the ring: raise the memlock limit (ulimit -l, now " + now +
                  ") or ask for fewer entries"};
    }
    case EMFILE:
    case ENFILE:
      return Error::from_errno(error, "no descriptor for the ring: raise the nofile limit (ulimit -n)");
    default:
      return Error::from_errno(error, "io_uring_setup");
  }
}

}  // namespace

int UringBackend::State::set_up(std::uint32_t entries, unsigned flags) {
  io_uring_params params{};
  params.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
  params.cq_entries = entries * 2;
  return io_uring_queue_init_params(entries, &ring, &params);
}

Status UringBackend::State::open(const UringOptions& options) {
  int result = -EINVAL;
  for (const FlagSet& set : kFlagSets) {
    if (set.missing != nullptr) notices.emplace_back(set.missing);
    result = set_up(options.entries, set.flags);
    if (result != -EINVAL) {
      features.single_issuer = (set.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
      features.coop_taskrun = (set.flags & IORING_SETUP_COOP_TASKRUN) != 0;
      features.taskrun_flag = (set.flags & IORING_SETUP_TASKRUN_FLAG) != 0;
      break;
    }
  }
  if (result < 0) return explain_refusal(-result);
  ring_open = true;
  constexpr unsigned kNeeded = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
  if ((ring.features & kNeeded) != kNeeded) {
    return Error(
        ReactorErrc::io_uring_unavailable,
        "this kernel's io_uring drops completions or waits without a timeout: use Linux 5.11 or later");
  }
  set_aside.reserve(ring.cq.ring_entries);
  probe_opcodes(options.allow_msg_ring);
  return {};
}

void UringBackend::State::probe_opcodes(bool allow_msg_ring) {
  // Multishot poll has no bit of its own; RSRC_TAGS came with the same kernel (5.13).
  features.multishot_poll = (ring.features & IORING_FEAT_RSRC_TAGS) != 0;
  if (!features.multishot_poll) {
    notices.emplace_back("io_uring: no multishot poll (Linux 5.13): each event re-arms its poll");
  }
  if (!allow_msg_ring) {
    notices.emplace_back("io_uring: MSG_RING is turned off by option: an eventfd wakes parked reactors");
    return;
  }
  const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(io_uring_get_probe_ring(&ring),
                                                                         &io_uring_free_probe);
  features.msg_ring = probe != nullptr && io_uring_opcode_supported(probe.get(), IORING_OP_MSG_RING) != 0;
  if (!features.msg_ring) {
    notices.emplace_back("io_uring: no MSG_RING (Linux 5.18): an eventfd wakes parked reactors");
    return;
  }
  features.host_msg_ring = probe_host_message();
  if (!features.host_msg_ring) {
    notices.emplace_back(
        "io_uring: no SEND_MSG_RING registration (Linux 6.13): host threads wake parked reactors by an "
        "eventfd");
  }
}

/// Sends one message to ourselves and takes it out again.
bool UringBackend::State::probe_host_message() {
  io_uring_sqe sqe{};
  prepare_message(sqe, ring.ring_fd, 0);
  sqe.off = make_user_data(CqeKind::probe, 0);
  if (io_uring_register(~0U, kRegisterSendMsgRing, &sqe, 1) < 0) return false;
  const unsigned arrived = io_uring_cq_ready(&ring);
  io_uring_cq_advance(&ring, arrived);
  return arrived == 1;
}

}  // namespace tidelock
