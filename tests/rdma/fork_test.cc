// Registered memory in a process that forks: a child may not make the pages copy-on-write under the device.
#include <cerrno>
#include <memory>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "fake/fake_verbs.h"
#include "memory.h"

using namespace tidelock;

namespace {

/// Asked of the kernel, which reads it for a pipe, so that a page that is not there is no crash.
bool child_has(const std::byte* at) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(::write(ends[1], at, 1) == 1 ? 0 : (errno == EFAULT ? 1 : 2));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  ::close(ends[0]);
  ::close(ends[1]);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) != 2);
  return WEXITSTATUS(status) == 0;
}

struct Domain {
  Domain() {
    fake::reset();
    ibv_device** list = ::ibv_get_device_list(nullptr);
    context.reset(::ibv_open_device(list[0]));
    ::ibv_free_device_list(list);
    pd.reset(::ibv_alloc_pd(context.get()));
  }
  RdmaHandle<ibv_context> context;
  RdmaHandle<ibv_pd> pd;
};

}  // namespace

TEST_CASE("rdma/memory: what is registered is kept from children only where nobody else keeps it whole") {
  struct Case {
    ibv_fork_status status;
    bool inherited;
  };
  // ENABLED: libibverbs does it, and counts the registrations of each page; the fake does not.
  for (const Case& c :
       {Case{IBV_FORK_UNNEEDED, true}, Case{IBV_FORK_ENABLED, true}, Case{IBV_FORK_DISABLED, false}}) {
    CAPTURE(static_cast<int>(c.status));
    Domain domain;
    fake::set_fork_status(c.status);
    const auto memory = PageMemory::map(64 << 10);
    REQUIRE(memory);
    const MutableBytes bytes = (*memory)->bytes();
    const auto mr = register_memory(domain.pd.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(mr);
    CHECK(child_has(bytes.data()) == c.inherited);
    CHECK(child_has(&bytes.back()) == c.inherited);
  }
}

TEST_CASE("rdma/memory: a page that registered memory has only a part of stays with children") {
  Domain domain;
  fake::set_fork_status(IBV_FORK_DISABLED);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = PageMemory::map(4 * page);
  REQUIRE(memory);
  const MutableBytes bytes = (*memory)->bytes();
  const auto mr = register_memory(domain.pd.get(), bytes.subspan(100, 3 * page), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(mr);
  CHECK(child_has(&bytes[100]));
  CHECK_FALSE(child_has(&bytes[page]));
  CHECK_FALSE(child_has(&bytes[3 * page - 1]));
  CHECK(child_has(&bytes[3 * page]));
  // Less than a page is left alone.
  const auto small = register_memory(domain.pd.get(), bytes.subspan(3 * page, 64), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(small);
  CHECK(child_has(&bytes[3 * page]));
}
