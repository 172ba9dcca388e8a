/// A primary's door: which replicas it takes, and from where their streams go on.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <tidelock/base/result.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/dialer.h>
#include <tidelock/replication/primary.h>

namespace tidelock {

struct AdmissionOptions {
  std::uint64_t ring_bytes = 0;                    ///< of the links, as the hello tells it
  std::uint32_t value_bytes_max = kValueBytesMax;  ///< of this node's values; a replica takes at least that
};

class Admission final : public Door {
 public:
  /// Both outlive it.
  Admission(Reactor& reactor, Primary& primary, const AdmissionOptions& options)
      : reactor_(reactor), primary_(primary), options_(options) {}

  Verdict judge(const Hello& theirs) override;
  Status attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) override;

 private:
  [[nodiscard]] std::optional<Refusal> check(const Hello& theirs);
  [[nodiscard]] std::optional<Refusal> check_terms(const Hello& theirs) const;
  [[nodiscard]] std::optional<Refusal> check_position(const Hello& theirs) const;
  /// The log no longer has what follows, but a snapshot can stand in for it.
  [[nodiscard]] bool needs_snapshot(const Hello& theirs) const;

  Reactor& reactor_;
  Primary& primary_;
  const AdmissionOptions options_;
  std::uint32_t generation_ = 0;
};

}  // namespace tidelock
