/// Planted bugs that more than one test needs, by name.
/// Thread:   any
#pragma once

#include <optional>
#include <string_view>

#include "planted.h"

namespace tidelock::sim {

struct AcknowledgesUnchecked final : ApplyPolicy {
  [[nodiscard]] bool acknowledges_unchecked() const override { return true; }
};
struct ResumesOffByOne final : ApplyPolicy {
  [[nodiscard]] Lsn resume_from(Lsn applied) const override {
    return applied == Lsn{} ? applied : applied.next();
  }
};
struct ReleasesOnAck final : AckPolicy {
  [[nodiscard]] bool releases_on_ack() const override { return true; }
};
struct ForgetsClosedLinks final : AckPolicy {
  [[nodiscard]] bool forgets_closed_links() const override { return true; }
};
struct FindsWhatWas final : TablePolicy {
  [[nodiscard]] bool finds_what_was() const override { return true; }
};

/// Nothing: there is none of that name.
[[nodiscard]] inline std::optional<Planted> planted_bug(std::string_view name) {
  static const AcknowledgesUnchecked acknowledges_unchecked{};
  static const ResumesOffByOne resumes_off_by_one{};
  static const ReleasesOnAck releases_on_ack{};
  static const ForgetsClosedLinks forgets_closed_links{};
  static const FindsWhatWas finds_what_was{};
  Planted planted;
  if (name == "acknowledges_unchecked") {
    planted.apply = &acknowledges_unchecked;
  } else if (name == "resumes_off_by_one") {
    planted.apply = &resumes_off_by_one;
  } else if (name == "releases_on_ack") {
    planted.ack = &releases_on_ack;
  } else if (name == "forgets_closed_links") {
    planted.ack = &forgets_closed_links;
  } else if (name == "finds_what_was") {
    planted.table = &finds_what_was;
  } else {
    return std::nullopt;
  }
  return planted;
}

}  // namespace tidelock::sim
