/// What the tests of a group's members say to one another.
/// Thread:   one
#pragma once

#include <cstdint>
#include <optional>

#include <tidelock/replication/membership.h>

namespace tidelock::test {

inline constexpr HistoryId kLine{7};
inline constexpr Duration kLease = seconds(2);

inline GroupOptions group_of(std::uint32_t node, std::uint32_t nodes = 3, std::uint32_t c = 1) {
  GroupOptions options;
  options.node = node;
  for (std::uint32_t i = 1; i <= nodes; ++i) options.nodes.push_back(i);
  options.c = c;
  options.lease = kLease;
  return options;
}

inline Hello hello_of(std::uint32_t node, NodeRole role, Epoch epoch, HistoryId history = kLine) {
  Hello hello;
  hello.role = role;
  hello.node = node;
  hello.epoch = epoch;
  hello.history = history;
  hello.group_sum = group_of(1).sum();
  hello.flags.memory = true;
  return hello;
}

inline Hello candidate(std::uint32_t node, std::uint32_t counter, bool promise = true) {
  Hello hello = hello_of(node, NodeRole::candidate, {counter, node});
  hello.flags.promise = promise;
  return hello;
}

inline Hello founder(std::uint32_t node, std::uint32_t counter, HistoryId history) {
  Hello hello = candidate(node, counter);
  hello.history = history;
  hello.flags.founding = true;
  return hello;
}

inline RefusalReason reason(const std::optional<Refusal>& refusal) {
  return refusal ? refusal->reason : RefusalReason::none;
}

}  // namespace tidelock::test
