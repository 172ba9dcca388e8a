// The fake under several threads: a sender, a receiver and one that controls, as in tidelock's tests.
#include <atomic>
#include <chrono>
#include <thread>

#include "fixture.h"

namespace tidelock::fake {

namespace {

constexpr std::uint64_t kMessages = 2000;
constexpr std::uint32_t kWindow = 8;

/// Gives up after a minute, so that a fault ends the test rather than hanging it.
bool in_time(std::chrono::steady_clock::time_point begun) {
  return std::chrono::steady_clock::now() - begun < std::chrono::minutes(1);
}

}  // namespace

TEST_CASE("fake threads: memory is handed from thread to thread by posts and completions") {
  Limits limits;
  limits.recv_wr = 2 * kWindow;
  Pair pair(limits);
  for (std::uint32_t i = 0; i < 2 * kWindow; ++i) REQUIRE(pair.b.post_recv(i) == 0);
  const auto begun = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> wrong{0}, received{0}, credits{2 * kWindow};
  std::atomic<bool> done{false};

  std::thread receiver([&] {
    while (received < kMessages && in_time(begun)) {
      ibv_wc wc{};
      if (ibv_poll_cq(pair.b.cq, 1, &wc) == 0) {
        std::this_thread::yield();
        continue;
      }
      std::uint64_t value = 0;
      std::memcpy(&value, pair.b.memory.data() + 8 * wc.imm_data, 8);
      if (wc.status != IBV_WC_SUCCESS || value != received) ++wrong;
      pair.b.post_recv(wc.wr_id);
      ++received;
      ++credits;
    }
  });
  std::thread controller([&] {
    while (!done) {
      hold();
      qp_stats(pair.a.qp->qp_num);
      live_objects();
      go();
      std::this_thread::yield();
    }
  });
  std::uint64_t sent = 0, finished = 0;
  while (finished < kMessages && in_time(begun)) {
    if (sent < kMessages && sent - finished < kWindow && credits > 0) {
      const std::uint32_t slot = static_cast<std::uint32_t>(sent % kWindow);
      std::memcpy(pair.a.memory.data() + 8 * slot, &sent, 8);
      Wr write(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, sent, 8);
      write.list = pair.a.sge(8 * slot, 8);
      // The receiver's slot is free: a credit says that its last message was read.
      const std::uint32_t target = static_cast<std::uint32_t>(sent % (2 * kWindow));
      write.to(pair.b, 8 * target).imm(target);
      REQUIRE(write.post(pair.a.qp) == 0);
      --credits;
      ++sent;
    }
    finished += pair.a.poll(4).size();
  }
  done = true;
  controller.join();
  receiver.join();
  CHECK(finished == kMessages);
  CHECK(received == kMessages);
  CHECK(wrong == 0);
}

TEST_CASE("fake threads: who blocks for an event is woken by another thread's step") {
  Pair pair;
  REQUIRE(fcntl(pair.b.channel->fd, F_SETFL, 0) == 0);
  REQUIRE(pair.b.post_recv(1) == 0);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);
  std::thread sleeper([&] {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(pair.b.channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  });
  Wr send(pair.a, IBV_WR_SEND, 1, 1);
  REQUIRE(send.post(pair.a.qp) == 0);
  step();
  sleeper.join();
  CHECK(pair.b.poll().size() == 1);
}

}  // namespace tidelock::fake
