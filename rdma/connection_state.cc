#include <algorithm>
#include <utility>

#include <tidelock/rdma/connection_state.h>

namespace tidelock {

const char* to_string(ConnectionState state) {
  switch (state) {
    case ConnectionState::idle:
      return "idle";
    case ConnectionState::resolving:
      return "resolving";
    case ConnectionState::connecting:
      return "connecting";
    case ConnectionState::local_ready:
      return "local_ready";
    case ConnectionState::ready:
      return "ready";
    case ConnectionState::draining:
      return "draining";
    case ConnectionState::closed:
      return "closed";
    case ConnectionState::failed:
      return "failed";
  }
  return "unknown";
}

void TransitionTrace::add(ConnectionState state, Instant at, std::string why) {
  kept_[added_++ % kKept] = {state, at, std::move(why)};
}

std::vector<ConnectionTransition> TransitionTrace::list() const {
  std::vector<ConnectionTransition> transitions;
  for (std::uint64_t i = added_ - std::min<std::uint64_t>(added_, kKept); i < added_; ++i) {
    transitions.push_back(kept_[i % kKept]);
  }
  return transitions;
}

std::string TransitionTrace::text(Instant now) const {
  const auto transitions = list();
  if (transitions.empty()) return "no transitions";
  const auto microseconds_between = [](Instant from, Instant to) {
    return std::to_string((to - from).ns / 1000) + " us";
  };
  std::string text;
  for (const auto& transition : transitions) {
    if (!text.empty()) text += ", ";
    text += to_string(transition.state);
    text += " +" + microseconds_between(transitions.front().at, transition.at);
    if (!transition.why.empty()) text += " (" + transition.why + ")";
  }
  return text + ", for " + microseconds_between(transitions.back().at, now);
}

}  // namespace tidelock
