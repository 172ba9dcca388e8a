#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sched.h>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "program.h"
#include "sanitized.h"

using namespace std::chrono_literals;
using tidelock::test::kSanitized;
using tidelock::test::kTidelock;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::refuse_io_uring;
using tidelock::test::run_program;
using tidelock::test::TemporaryFile;

namespace {

/// A one-line error that names the remedy, exit status 2, nothing on standard output.
void check_refused(const ProgramResult& result, const std::vector<std::string>& said) {
  INFO(result.err);
  CHECK(result.exit_status == 2);
  CHECK(result.out.empty());
  for (const std::string& text : said) CHECK_MESSAGE(result.err.find(text) != std::string::npos, text);
  std::size_t lines = 0;
  for (const char c : result.err) lines += c == '\n' ? 1 : 0;
  CHECK(lines == 1);
}

ProgramResult run_on(const std::string& content, std::vector<std::string> more = {}) {
  const TemporaryFile file(content);
  std::vector<std::string> arguments{"run", "--duration", "0.2", "--input", file.path()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(kTidelock, arguments);
}

}  // namespace

TEST_CASE("bad input: files") {
  check_refused(run_program(kTidelock, {"run", "--input", "/no/such/file"}),
                {"/no/such/file", "No such file"});
  check_refused(run_program(kTidelock, {"run", "--input", "/"}), {"is a directory"});
  check_refused(run_on(""), {"is empty"});
  check_refused(run_on("a\t1\nno tab here\n"), {":2:", "no TAB"});
  check_refused(run_on("\tvalue\n"), {":1:", "key is empty"});
  check_refused(run_on(std::string(65'537, 'k') + "\tv\n"), {":1:", "65537", "65536"});
  check_refused(run_on(std::string("a\tb\0c\n", 6)), {":1:", "NUL"});
  check_refused(run_on("Version: 1\n\n", {"--format", "dpkg"}), {":1:", "Package"});
  check_refused(run_on("\n\n", {"--format", "dpkg"}), {"no record"});
}

TEST_CASE("bad input: a value beyond the limit names its line and the limit") {
  check_refused(run_on("a\t1\nb\t" + std::string((64U << 20) + 1, 'v') + "\n"),
                {":2:", "67108865", "67108864"});
}

TEST_CASE("bad input: an unreadable file") {
  if (::geteuid() == 0) {
    // root reads everything; the child gives that up.
    const TemporaryFile file("a\t1\n");
    std::filesystem::permissions(file.path(), std::filesystem::perms::none);
    Program::Setup setup;
    setup.before_exec = [] { (void)::setuid(65534); };
    check_refused(run_program(kTidelock, {"run", "--input", file.path()}, setup),
                  {file.path(), "Permission denied"});
  }
}

TEST_CASE("bad input: flags") {
  check_refused(run_program(kTidelock, {"run", "--no-such-flag"}), {"--no-such-flag", "--help"});
  check_refused(run_program(kTidelock, {"run", "--shards", "0"}), {"--shards", "1", "256"});
  check_refused(run_program(kTidelock, {"run", "--shards", "257"}), {"--shards", "256"});
  check_refused(run_program(kTidelock, {"run", "--shards", "many"}), {"--shards"});
  check_refused(run_program(kTidelock, {"run", "--ack", "maybe"}), {"--ack", "applied"});
  check_refused(run_program(kTidelock, {"run", "--duration", "-1"}), {"--duration"});
  check_refused(run_program(kTidelock, {"run", "--value-bytes", "67108865"}), {"--value-bytes", "67108864"});
  check_refused(run_program(kTidelock, {"run", "--read-ratio", "1.5"}), {"--read-ratio"});
  check_refused(run_program(kTidelock, {"run", "--log-bytes", "1000"}),
                {"log_bytes", "1000", "power of two"});
  check_refused(run_program(kTidelock, {"run", "--pin", "--overprovisioned"}), {"--pin"});
  check_refused(run_program(kTidelock, {"frobnicate"}), {"frobnicate"});
  check_refused(run_program(kTidelock, {}), {"--help"});
}

TEST_CASE("bad input: --help teaches and exits 0") {
  const auto result = run_program(kTidelock, {"run", "--help"});
  CHECK(result.exit_status == 0);
  for (const char* text : {"--input", "--shards", "--ack", "--json", "Exit status"})
    CHECK_MESSAGE(result.out.find(text) != std::string::npos, text);
}

TEST_CASE("bad machine: io_uring blocked by seccomp, or disabled") {
  for (const int errno_value : {EPERM, ENOSYS}) {
    Program::Setup setup;
    setup.before_exec = [errno_value] { refuse_io_uring(errno_value); };
    check_refused(run_program(kTidelock, {"run", "--duration", "0.2"}, setup), {"io_uring"});
  }
}

TEST_CASE("bad machine: a CPU set smaller than the shards") {
  const auto one_cpu = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    cpu_set_t usable;
    ::sched_getaffinity(0, sizeof usable, &usable);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &usable)) {
        CPU_SET(cpu, &set);
        break;
      }
    }
    ::sched_setaffinity(0, sizeof set, &set);
  };
  Program::Setup setup;
  setup.before_exec = one_cpu;
  check_refused(run_program(kTidelock, {"run", "--pin", "--shards", "1"}, setup), {"--overprovisioned", "1"});
  // Without --pin the total is passed on and nothing spins.
  const auto shared = run_program(kTidelock, {"run", "--json", "--duration", "0.3", "--shards", "1"}, setup);
  INFO(shared.err);
  CHECK(shared.exit_status == 0);
  CHECK(shared.json()["overprovisioned"] == true);
}

TEST_CASE("bad machine: a locked-memory limit that is too low for the rings") {
  if (::geteuid() != 0) return;  // the limit binds those without CAP_IPC_LOCK; root can become one of them
  Program::Setup setup;
  setup.before_exec = [] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_MEMLOCK, &none);
    (void)::setuid(65534);
  };
  check_refused(run_program(kTidelock, {"run", "--duration", "0.2", "--shards", "1"}, setup), {"memlock"});
}

// Not under sanitizers: UBSan's check of an object's type takes a pipe.
TEST_CASE("bad machine: too few descriptors" * doctest::skip(kSanitized)) {
  Program::Setup setup;
  setup.before_exec = [] {
    ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);  // what whoever runs the tests has left open
    const rlimit limit{12, 12};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  const auto result = run_program(kTidelock, {"run", "--duration", "0.2", "--shards", "2"}, setup);
  INFO(result.err);
  CHECK(result.exit_status == 2);
}

TEST_CASE("bad place: a socket path in use, or too long") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("tidelock-used-" + std::to_string(::getpid()));
  std::filesystem::remove(path);  // of an earlier process with this number
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(fd, 4) == 0);
  check_refused(run_program(kTidelock, {"run", "--duration", "0.2", "--socket", path}), {path});
  // The other's socket is still there.
  CHECK(std::filesystem::exists(path));
  ::close(fd);
  std::filesystem::remove(path);
  check_refused(run_program(kTidelock, {"run", "--socket", "/tmp/" + std::string(200, 'x')}), {"107"});
}

TEST_CASE("bad place: a full disk for the output") {
  check_refused(
      run_program(kTidelock, {"run", "--duration", "0.2", "--shards", "1", "--output", "/dev/full"}),
      {"/dev/full", "No space left"});
  Program::Setup setup;
  setup.out_path = "/dev/full";
  check_refused(run_program(kTidelock, {"run", "--duration", "0.2", "--shards", "1"}, setup),
                {"standard output", "No space left"});
  check_refused(run_program(kTidelock, {"run", "--output", "/no/such/folder/report"}),
                {"/no/such/folder/report"});
}
