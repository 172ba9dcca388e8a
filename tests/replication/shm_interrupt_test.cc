// Ending an attempt to connect that waits for a primary that is not there.
#include <atomic>
#include <string>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/shm.h>

using namespace tidelock;

TEST_CASE("replication/shm: interrupt() ends an attempt that waits for a primary, and those that follow") {
  const auto transport = make_shm_transport();
  const std::string nowhere = "@tidelock-nobody-" + std::to_string(::getpid());
  std::atomic<bool> begins{false};
  std::thread other([&] {
    begins = true;
    const auto connected = transport->connect(nowhere, Hello{}, seconds(30));
    REQUIRE_FALSE(connected);
    CHECK_MESSAGE(connected.error() == ReactorErrc::closed, connected.error().message());
  });
  while (!begins) std::this_thread::yield();
  transport->interrupt();
  other.join();
  CHECK(transport->connect(nowhere, Hello{}, seconds(30)).error() == ReactorErrc::closed);
}
