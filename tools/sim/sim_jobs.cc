#include "sim_jobs.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace tidelock::sim {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{50};
/// Counted as silence between two looks at most: a longer time is one in which we were stopped (Ctrl-Z), and
/// the workers with us.
constexpr std::chrono::milliseconds kGapMax{200};

// ---- what a worker says: a line when it begins a seed, a line with its result ----------------------------

std::string encode(const RunResult& result) {
  nlohmann::json json = {
      {"seed", result.seed},
      {"hash", result.trace_hash},
      {"events", result.events},
      {"simulated", result.simulated_ns},
      {"undecided", result.undecided},
      {"behind", result.behind_log},
      {"restarted", result.restarted},
      {"trace", result.trace},
      {"calls",
       {result.calls.ok, result.calls.not_done, result.calls.unknown, result.calls.replica_reads,
        result.calls.receipt_reads}},
      {"syncs",
       {result.syncs.snapshots, result.syncs.whole, result.syncs.broken, result.syncs.ranges,
        result.syncs.voids, result.syncs.drops, result.syncs.below_c}}};
  for (const Failure& failure : result.failures)
    json["failures"].push_back({failure.checker, failure.at.ns, failure.event, failure.text});
  for (const FaultCounts::Count& count : result.counts.of)
    json["faults"].push_back({count.injected, count.hit});
  return json.dump();
}

/// Only ever what encode() made, in a process of ours.
RunResult decode(const std::string& line) {
  const auto json = nlohmann::json::parse(line);
  RunResult result;
  result.seed = json["seed"];
  result.trace_hash = json["hash"];
  result.events = json["events"];
  result.simulated_ns = json["simulated"];
  result.undecided = json["undecided"];
  result.behind_log = json["behind"];
  result.restarted = json["restarted"];
  result.trace = json["trace"].get<std::vector<std::string>>();
  result.calls = {json["calls"][0], json["calls"][1], json["calls"][2], json["calls"][3], json["calls"][4]};
  const auto& syncs = json["syncs"];
  result.syncs = {syncs[0], syncs[1], syncs[2], syncs[3], syncs[4], syncs[5], syncs[6]};
  if (json.contains("failures")) {
    for (const auto& each : json["failures"])
      result.failures.push_back({each[0], Instant{each[1]}, each[2], each[3]});
  }
  for (std::size_t i = 0; i < kFaultKinds; ++i)
    result.counts.of[i] = {json["faults"][i][0], json["faults"][i][1]};
  return result;
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

/// Seeds `next`, `next` + stride, ...
struct Worker {
  pid_t pid = -1;
  int fd = -1;
  std::uint64_t next = 0;  ///< the one that it is at, or will begin with
  bool at_work = false;    ///< it has begun `next` and not ended it
  std::string text;
  SteadyClock::duration silent{};
};

class Jobs {
 public:
  explicit Jobs(const JobOptions& options) : options_(options) {}
  ~Jobs() {
    for (Worker& worker : workers_) end(worker);
  }

  JobTotals run() {
    if (const Status run = run_all(); !run) totals_.broke_off = run.error();
    return std::move(totals_);
  }

 private:
  Status run_all() {
    const std::uint64_t count = std::min<std::uint64_t>(options_.jobs, options_.seeds);
    workers_.resize(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      workers_[i].next = options_.first + i;
      TL_TRY(start(workers_[i]));
    }
    while (
        std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.fd >= 0; })) {
      if (options_.stopped()) {
        totals_.interrupted = true;
        break;
      }
      if (!totals_.failed.empty() && !options_.keep_going) break;
      TL_TRY(look());
      options_.progress(totals_);
    }
    return {};
  }

  [[nodiscard]] std::uint64_t end_seed() const { return options_.first + options_.seeds; }

  Status start(Worker& worker) {
    if (worker.next >= end_seed()) return {};
    int ends[2];
    if (::pipe(ends) != 0)
      return Error::from_errno(errno, "no pipe to a worker: raise the limit of open files");
    worker.pid = ::fork();
    if (worker.pid < 0) {
      const int code = errno;
      ::close(ends[0]);
      ::close(ends[1]);
      return Error::from_errno(code,
                               "no process for a worker: raise the limit of processes, or use fewer --jobs");
    }
    if (worker.pid == 0) {
      ::close(ends[0]);
      work(ends[1], worker.next);
    }
    ::close(ends[1]);
    worker.fd = ends[0];
    worker.at_work = false;
    worker.text.clear();
    worker.silent = {};
    return {};
  }

  /// In the worker.
  [[noreturn]] void work(int fd, std::uint64_t first) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent decides when it ends; these come to the whole group.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    for (std::uint64_t seed = first; seed < end_seed(); seed += workers_.size()) {
      if (!write_all(fd, "begin\n") || !write_all(fd, encode(options_.run(seed)) + "\n")) break;
    }
    ::_exit(0);
  }

  Status look() {
    std::vector<pollfd> files;
    for (const Worker& worker : workers_) files.push_back({worker.fd, POLLIN, 0});
    ::poll(files.data(), files.size(), static_cast<int>(kLook.count()));
    const auto now = SteadyClock::now();
    const auto gap = std::min<SteadyClock::duration>(now - looked_, kGapMax);
    looked_ = now;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.fd < 0) continue;
      if (files[i].revents != 0) {
        TL_TRY(read_from(worker));
        continue;
      }
      worker.silent += gap;
      if (worker.silent > options_.silence) {
        end(worker);
        TL_TRY(lost(worker, fmt::format("no answer for {} s: killed", options_.silence.count() / 1'000)));
      }
    }
    return {};
  }

  Status read_from(Worker& worker) {
    char buffer[65'536];
    const ssize_t got = ::read(worker.fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) return {};
    if (got <= 0) return ended(worker);
    worker.silent = {};
    worker.text.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t end; (end = worker.text.find('\n')) != std::string::npos;) {
      const std::string line = worker.text.substr(0, end);
      worker.text.erase(0, end + 1);
      if (line == "begin") {
        worker.at_work = true;
        continue;
      }
      add(decode(line));
      worker.at_work = false;
      worker.next += workers_.size();
    }
    return {};
  }

  Status ended(Worker& worker) {
    ::close(std::exchange(worker.fd, -1));
    int status = 0;
    while (::waitpid(std::exchange(worker.pid, -1), &status, 0) < 0 && errno == EINTR) {
    }
    if (!worker.at_work && worker.next >= end_seed()) return {};
    return lost(worker, WIFSIGNALED(status)
                            ? fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                            : fmt::format("the worker ended with status {}", WEXITSTATUS(status)));
  }

  /// The worker is gone amid a seed; another one goes on behind that.
  Status lost(Worker& worker, const std::string& how) {
    totals_.failed[worker.next].push_back({"crash", Instant{}, 0, how});
    if (options_.shared_trace != nullptr) totals_.trace = options_.shared_trace->lines();
    worker.next += workers_.size();
    if (!options_.keep_going) return {};
    return start(worker);
  }

  static void end(Worker& worker) {
    if (worker.fd < 0) return;
    ::close(std::exchange(worker.fd, -1));
    ::kill(worker.pid, SIGKILL);
    while (::waitpid(worker.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    worker.pid = -1;
  }

  void add(RunResult result) {
    if (result.failures.empty()) {
      ++totals_.passed;
    } else {
      totals_.failed[result.seed] = std::move(result.failures);
    }
    totals_.undecided += result.undecided > 0 ? 1 : 0;
    totals_.excused += result.behind_log > 0 ? 1 : 0;
    totals_.restarted += result.restarted;
    totals_.events += result.events;
    totals_.simulated_ns += result.simulated_ns;
    totals_.calls.add(result.calls);
    totals_.syncs.add(result.syncs);
    totals_.trace_hash = result.trace_hash;
    totals_.trace = std::move(result.trace);
    for (std::size_t i = 0; i < kFaultKinds; ++i) {
      totals_.counts.of[i].injected += result.counts.of[i].injected;
      totals_.counts.of[i].hit += result.counts.of[i].hit;
      totals_.seeds_with[i] += result.counts.of[i].injected > 0 ? 1 : 0;
    }
  }

  const JobOptions& options_;
  std::vector<Worker> workers_;
  SteadyClock::time_point looked_ = SteadyClock::now();
  JobTotals totals_;
};

}  // namespace

std::optional<std::string> JobTotals::too_little() const {
  constexpr std::uint64_t kSeedsLeast = 100;  // of fewer a share says nothing
  constexpr std::uint64_t kUndecidedPercentMost = 1;
  constexpr std::uint64_t kExcusedPercentMost = 20;
  if (seeds() < kSeedsLeast) return std::nullopt;
  const auto above = [this](std::uint64_t count, std::uint64_t percent) {
    return count * 100 > seeds() * percent;
  };
  if (above(undecided, kUndecidedPercentMost))
    return fmt::format("{} of {} seeds undecided, more than {} %", undecided, seeds(), kUndecidedPercentMost);
  if (above(excused, kExcusedPercentMost))
    return fmt::format("{} of {} seeds excused, more than {} %", excused, seeds(), kExcusedPercentMost);
  return std::nullopt;
}

JobTotals run_jobs(const JobOptions& options) { return Jobs(options).run(); }

}  // namespace tidelock::sim
