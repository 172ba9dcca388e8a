// A programmer's faults: the fake ends the program and says what it was.
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <thread>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include "fixture.h"

namespace tidelock::fake {

namespace {

/// What `fault` wrote to stderr before it aborted; empty if it did not abort.
std::string abort_message(const std::function<void()>& fault) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::fflush(stdout);
  std::cout.flush();  // else the child could write it once more
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    fault();
    _exit(0);
  }
  close(ends[1]);
  std::string message;
  char buffer[256];
  for (ssize_t bytes; (bytes = read(ends[0], buffer, sizeof(buffer))) > 0;)
    message.append(buffer, static_cast<std::size_t>(bytes));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? message : std::string();
}

bool aborts_with(const std::string& text, const std::function<void()>& fault) {
  const std::string message = abort_message(fault);
  INFO(message);
  return message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("fake aborts: destroying twice") {
  Pair pair;
  CHECK(aborts_with("ibv_destroy_qp: no live ibv_qp", [&] {
    ibv_destroy_qp(pair.a.qp);
    ibv_destroy_qp(pair.a.qp);
  }));
  CHECK(aborts_with("ibv_dereg_mr: no live ibv_mr", [&] {
    ibv_dereg_mr(pair.a.mr);
    ibv_dereg_mr(pair.a.mr);
  }));
}

TEST_CASE("fake aborts: a context that is still in use is closed") {
  Pair pair;
  CHECK(aborts_with("4 objects of the context are still there", [&] {
    ibv_destroy_qp(pair.a.qp);
    ibv_dereg_mr(pair.a.mr);
    ibv_alloc_pd(pair.a.context);
    ibv_close_device(pair.a.context);
  }));
}

TEST_CASE("fake aborts: completion events acknowledged too often, or not") {
  Pair pair;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 1);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  REQUIRE(ibv_get_cq_event(pair.a.channel, &cq, &context) == 0);
  CHECK(aborts_with("more acknowledged than got", [&] { ibv_ack_cq_events(cq, 2); }));
  CHECK(aborts_with("ibv_destroy_cq would block: 1 events", [&] {
    ibv_destroy_qp(pair.a.qp);
    ibv_destroy_cq(cq);
  }));
  ibv_ack_cq_events(cq, 1);
}

TEST_CASE("fake aborts: an async event is not acknowledged, or twice") {
  Pair pair;
  raise_qp_event(pair.a.qp->qp_num, IBV_EVENT_QP_FATAL);
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
  CHECK(aborts_with("ibv_destroy_qp would block", [&] { ibv_destroy_qp(pair.a.qp); }));
  ibv_ack_async_event(&event);
  CHECK(aborts_with("more acknowledged than got", [&] { ibv_ack_async_event(&event); }));
}

TEST_CASE("fake aborts: overruns") {
  Limits limits;
  limits.cqe = 1;
  limits.recv_wr = 1;
  Pair pair(limits);
  REQUIRE(pair.a.post_recv(1) == 0);
  CHECK(aborts_with("overrun of a receive queue of 1", [&] { pair.a.post_recv(2); }));
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 1);
  write.to(pair.b, 0);
  CHECK(aborts_with("overrun of a completion queue of 1", [&] {
    write.post(pair.a.qp);
    write.post(pair.a.qp);
    step();
  }));
}

TEST_CASE("fake aborts: two threads post to one queue pair at once") {
  Pair pair;
  Wr send(pair.a, IBV_WR_SEND, 1, 1);
  CHECK(aborts_with("two threads post", [&] {
    bool first = true;
    set_post_hook([&](ibv_qp* qp) {
      if (!first) return;
      first = false;
      std::thread([&] {
        Wr other(pair.a, IBV_WR_SEND, 2, 1);
        other.post(qp);
      }).join();
    });
    send.post(pair.a.qp);
  }));
}

TEST_CASE("fake aborts: a reset with objects left says which") {
  Pair pair;
  CHECK(aborts_with("still there: 2 contexts, 2 pds, 2 mrs", [] { reset(); }));
}

TEST_CASE("fake aborts: CM events that are not acknowledged") {
  reset();
  rdma_event_channel* channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  std::memcpy(&target.sin_addr, mapped_gid("10.0.0.2").gid.raw + 12, 4);
  REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&target), 100) == 0);
  rdma_cm_event* event = nullptr;
  REQUIRE(rdma_get_cm_event(channel, &event) == 0);
  CHECK(aborts_with("rdma_destroy_id would block: 1 events", [&] { rdma_destroy_id(id); }));
  CHECK(aborts_with("rdma_migrate_id would block", [&] { rdma_migrate_id(id, channel); }));
  CHECK(aborts_with("rdma_destroy_event_channel: 1 ids", [&] { rdma_destroy_event_channel(channel); }));
  CHECK(aborts_with("rdma_ack_cm_event: no live", [&] {
    rdma_ack_cm_event(event);
    rdma_ack_cm_event(event);
  }));
  REQUIRE(rdma_ack_cm_event(event) == 0);
  REQUIRE(rdma_destroy_id(id) == 0);
  rdma_destroy_event_channel(channel);
  CHECK(live_objects().total() == 0);
}

}  // namespace tidelock::fake
