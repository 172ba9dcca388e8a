#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/epoch_line.h>

using namespace tidelock;

namespace {

/// A log as the list of its entries' epochs. An epoch has one writer, so an epoch and a position are one
/// entry.
using EpochLog = std::vector<std::uint32_t>;

EpochLine line_of(const EpochLog& log) {
  EpochLine line;
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (i == 0 || log[i] != log[i - 1]) line.begin({log[i], 0}, Lsn{i + 1});
  }
  return line;
}

Lsn last_of(const EpochLog& log) { return {log.size()}; }

bool is_prefix(const EpochLog& part, const EpochLog& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

EpochLog head(const EpochLog& log, std::size_t entries) {
  return {log.begin(), log.begin() + static_cast<std::ptrdiff_t>(entries)};
}

constexpr std::uint32_t kEpochs = 4;
constexpr std::size_t kEpochEntriesMax = 2;

/// Visits every way in which epochs 1 to kEpochs may have written: each went on from some prefix of some log
/// before it (or from nothing), with one or two entries, or never led. `written` are the longest logs.
template <class Visit>
void for_each_past(std::vector<EpochLog>& written, std::uint32_t epoch, Visit&& visit) {
  if (epoch > kEpochs) return visit(written);
  for_each_past(written, epoch + 1, visit);
  std::vector<EpochLog> starts{{}};
  for (const EpochLog& log : written) {
    for (std::size_t entries = 1; entries <= log.size(); ++entries) {
      const EpochLog start = head(log, entries);
      if (std::find(starts.begin(), starts.end(), start) == starts.end()) starts.push_back(start);
    }
  }
  for (EpochLog log : starts) {
    for (std::size_t entries = 1; entries <= kEpochEntriesMax; ++entries) {
      log.push_back(epoch);
      written.push_back(log);
      for_each_past(written, epoch + 1, visit);
      written.pop_back();
    }
  }
}

}  // namespace

TEST_CASE("replication/epoch_line: agrees with a comparison of entries for every pair of short histories") {
  std::uint64_t pasts = 0, pairs = 0, prefixes = 0, cuts = 0;
  std::vector<EpochLog> written;
  for_each_past(written, 1, [&](const std::vector<EpochLog>& logs) {
    ++pasts;
    std::vector<EpochLog> all{{}};
    for (const EpochLog& log : logs) {
      for (std::size_t entries = 1; entries <= log.size(); ++entries) all.push_back(head(log, entries));
    }
    for (const EpochLog& own : all) {
      const EpochLine line = line_of(own);
      for (const EpochLog& other : all) {
        ++pairs;
        const Epoch epoch = other.empty() ? Epoch{} : Epoch{other.back(), 0};
        const bool expected = is_prefix(other, own);
        prefixes += expected;
        REQUIRE(line.prefix(epoch, last_of(other), last_of(own)) == expected);
        if (other.empty()) continue;
        // As a receipt: of an entry that the own log lacks, one of a later epoch may yet replace what the log
        // has there, and a log that is only too short may grow.
        const bool newer = own.empty() || other.back() > own.back();
        const auto standing = expected                         ? EntryStanding::held
                              : newer || is_prefix(own, other) ? EntryStanding::to_come
                                                               : EntryStanding::cut;
        cuts += standing == EntryStanding::cut;
        REQUIRE(line.standing(epoch, last_of(other), last_of(own)) == standing);
      }
      for (std::size_t i = 0; i < own.size(); ++i) REQUIRE(line.epoch_of(Lsn{i + 1}) == Epoch{own[i], 0});
    }
  });
  MESSAGE("pasts: ", pasts, ", pairs of logs: ", pairs, ", prefixes: ", prefixes, ", cuts: ", cuts);
  CHECK(pasts > 1'000);
  CHECK(prefixes > 50'000);
  CHECK(cuts > 10'000);
}

TEST_CASE("replication/epoch_line: an epoch that one side never saw is no prefix") {
  EpochLine primary;
  primary.begin({1, 1}, {1});
  primary.begin({3, 1}, {4});
  CHECK_FALSE(primary.prefix({2, 2}, {5}, {9}));  // as long, and of an epoch between two of the line
  CHECK_FALSE(primary.prefix({2, 2}, {2}, {9}));
  CHECK_FALSE(primary.prefix({1, 2}, {2}, {9}));  // the same counter, another node
  CHECK(primary.prefix({1, 1}, {3}, {9}));
  CHECK_FALSE(primary.prefix({1, 1}, {4}, {9}));
  CHECK(primary.prefix({3, 1}, {9}, {9}));
  CHECK_FALSE(primary.prefix({3, 1}, {10}, {9}));
}

TEST_CASE("replication/epoch_line: what is older than the line goes is not believed") {
  EpochLine line;
  constexpr std::uint32_t kAll = 200;
  for (std::uint32_t i = 1; i <= kAll; ++i) line.begin({i, 0}, Lsn{2 * i});
  const Lsn last{2 * kAll + 1};
  CHECK(line.starts().size() == EpochLine::kStartsMax);
  CHECK(line.last_epoch() == Epoch{kAll, 0});
  const std::uint32_t oldest = kAll - EpochLine::kStartsMax + 1;
  for (std::uint32_t i = 1; i <= kAll; ++i) {
    const bool known = i >= oldest;
    CHECK(line.prefix({i, 0}, Lsn{2 * i + 1}, last) == known);
    CHECK(line.cut({i, 0}, Lsn{2 * i + 1}, last) == !known);
    CHECK(line.epoch_of(Lsn{2 * i + 1}) == (known ? std::optional(Epoch{i, 0}) : std::nullopt));
  }
  EpochLine other;
  other.begin({1, 0}, {1});
  other.assign(line.starts());
  CHECK(std::equal(other.starts().begin(), other.starts().end(), line.starts().begin(), line.starts().end()));
  other.begin({kAll + 1, 0}, last.next());
  CHECK(other.holds({kAll + 1, 0}, last.next(), last.next()));
  CHECK(other.starts().front() == EpochStart{{oldest + 1, 0}, Lsn{2 * (oldest + 1)}});
}

TEST_CASE("replication/epoch_line: a line from a peer is legal only if epochs and LSNs ascend") {
  CHECK(EpochLine::legal({}));
  const auto legal = [](std::vector<EpochStart> starts) { return EpochLine::legal(starts); };
  CHECK(legal({{{1, 1}, {1}}}));
  CHECK(legal({{{0, 0}, {1}}, {{1, 0}, {2}}}));
  CHECK_FALSE(legal({{{1, 1}, {0}}}));
  CHECK_FALSE(legal({{{1, 1}, {1}}, {{1, 1}, {2}}}));
  CHECK_FALSE(legal({{{2, 1}, {1}}, {{1, 9}, {2}}}));
  CHECK_FALSE(legal({{{1, 1}, {2}}, {{2, 1}, {2}}}));
  CHECK_FALSE(legal({{{1, 1}, {2}}, {{2, 1}, {1}}}));
  std::vector<EpochStart> many;
  for (std::uint32_t i = 0; i < EpochLine::kStartsMax + 1; ++i) many.push_back({{i, 0}, Lsn{i + 1}});
  CHECK_FALSE(EpochLine::legal(many));
  many.pop_back();
  CHECK(EpochLine::legal(many));
}
