/// The communication manager of the fake: what the kernel keeps of an rdma_cm_id, and its messages.
/// Thread:   all needs World::mutex
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <rdma/rdma_cma.h>

#include "registry.h"

namespace tidelock::fake {

struct World;
struct Device;

enum class ConnState {
  idle,
  addr_query,
  addr_resolved,
  route_query,
  route_resolved,
  listening,
  req_sent,
  req_received,
  rep_sent,
  rep_received,
  established,
  disconnecting,
  disconnected,
  failed,
};

/// The kernel's half of an id. A request that has not been fetched yet has one, but no id.
struct Conn {
  std::uint64_t serial = 0;
  std::uint64_t id = 0;       ///< CmId, 0 before its CONNECT_REQUEST is fetched
  std::uint64_t channel = 0;  ///< CmChannel
  std::uint64_t peer = 0;     ///< Conn on the other side
  std::uint64_t listener = 0;
  ConnState state = ConnState::idle;
  bool initiator = false, bound = false, silent = false;
  Device* device = nullptr;
  Device* peer_device = nullptr;
  sockaddr_in local{}, remote{};
  std::uint32_t local_qp_num = 0, remote_qp_num = 0, psn = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0, retry_count = 0, rnr_retry_to_peer = 0;
  std::uint8_t rnr_retry = 0;    ///< for the own queue pair: what the peer asked for
  std::uint8_t ack_timeout = 0;  ///< 0: not set
  int backlog = 0, requests_waiting = 0;
};

/// An event in a channel's queue.
struct CmEvent {
  std::uint64_t conn = 0;     ///< whose; of a CONNECT_REQUEST the new one's
  std::uint64_t counted = 0;  ///< Conn whose id may not be destroyed before the acknowledgement
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  rdma_conn_param param{};
  std::vector<std::uint8_t> private_data;
};

struct CmChannel : rdma_event_channel {
  std::uint64_t serial = 0;
  std::deque<CmEvent> events;
  EventFd event_fd;
  std::uint32_t ids = 0, unacked = 0;
};

struct CmId : rdma_cm_id {
  std::uint64_t serial = 0;
  std::uint64_t conn = 0;
  std::uint32_t unacked = 0;
};

/// What rdma_get_cm_event() hands out.
struct CmUserEvent : rdma_cm_event {
  std::uint64_t serial = 0;
  std::uint64_t counted_id = 0, channel = 0;
  std::vector<std::uint8_t> private_data;
};

inline constexpr std::size_t kReqPrivateBytes = 56, kRepPrivateBytes = 196, kRejPrivateBytes = 148;
inline constexpr int kRejectTimeout = 4, kRejectInvalidService = 8, kRejectConsumer = 28;

Conn* find_conn(World& w, std::uint64_t serial);
/// Queues an event for the user, through the faults that a test has planted.
void emit(World& w, CmEvent event);
void emit(World& w, const Conn& conn, rdma_cm_event_type type, int status = 0);
void purge_events(World& w, std::uint64_t conn);
/// Tells the peer that this half is gone, as destroying an id does; of a listener, those who wait for it.
void hang_up(World& w, Conn& conn);

// Messages; each waits while the devices are cut, and is given up after cm_timeout_steps.
void send_request(World& w, Conn& from, std::vector<std::uint8_t> private_data);
void send_reply(World& w, Conn& from, std::vector<std::uint8_t> private_data);
void send_ready(World& w, Conn& from);
void send_reject(World& w, const Conn& from, int reason, std::vector<std::uint8_t> private_data);
void send_disconnect(World& w, Conn& from);

}  // namespace tidelock::fake
