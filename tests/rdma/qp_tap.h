/// The queue pairs that this program has made, for tests that do to them what nobody should. qp_tap.cc puts
/// its own ibv_create_qp before the library's.
/// Thread:   any
#pragma once

#include <cstddef>

struct ibv_qp;

namespace tidelock::test {

/// The last one made is 0, the one before it 1. It may be gone; the caller knows.
ibv_qp* queue_pair_made(std::size_t back);

/// Of a rig that has just connected: the active side makes its queue pair before it asks, the passive one
/// after.
inline ibv_qp* active_queue_pair() { return queue_pair_made(1); }
inline ibv_qp* passive_queue_pair() { return queue_pair_made(0); }

/// Takes away the peer's right to write here: how a node is fenced out.
void fence(ibv_qp* pair);
void move_to_error(ibv_qp* pair);

}  // namespace tidelock::test
