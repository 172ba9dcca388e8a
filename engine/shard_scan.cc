// Scans: over the table itself, and page by page for callers elsewhere. Both go in steps of the table,
// between which others run. See shard.h.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <tidelock/engine/errc.h>

#include "inside.h"
#include "shard.h"

namespace tidelock {
namespace {

/// A step of the table, and a piece of a larger value.
constexpr std::size_t kStepBytes = 64 * 1024;

/// One step on its way into a page, whose earlier bytes stay.
struct Step {
  /// Its value is copied in pieces after the step.
  struct Large {
    std::string key;
    Lsn lsn;
    Table::Pin pin;
  };
  explicit Step(std::string& into) : page(into) {}

  std::string& page;
  std::size_t keys = 0;
  std::vector<Large> large;  ///< seldom more than one: they are of one hash
  std::size_t large_bytes = 0;

  void add(Bytes key, Bytes value, Lsn lsn) {
    ++keys;
    if (value.size() > kStepBytes) {
      large.push_back({std::string(as_text(key)), lsn, {}});
      large_bytes += sizeof(ScanRecord) + key.size() + value.size();
      return;
    }
    head(as_text(key), value.size(), lsn);
    page.append(as_text(value));
  }
  void head(std::string_view key, std::size_t value_bytes, Lsn lsn) {
    ScanRecord record;
    record.key_bytes = static_cast<std::uint32_t>(key.size());
    record.value_bytes = static_cast<std::uint32_t>(value_bytes);
    record.lsn = lsn;
    page.append(reinterpret_cast<const char*>(&record), sizeof record);
    page.append(key);
  }
};

/// A short page grows as strings do. A long one would be copied at once to double it, so it gets all that it
/// may need.
void make_room(std::string& page, std::size_t more) {
  const std::size_t wanted = page.size() + more;
  if (wanted <= std::max(page.capacity(), 2 * kStepBytes)) return;
  page.reserve(std::max(wanted, kScanPageBytes + 2 * kStepBytes));
}

}  // namespace

Status Shard::scan(ScanCursor& cursor, std::size_t keys_max, const Engine::Visitor& visitor,
                   Instant deadline) {
  if (shut_) return EngineErrc::closed;
  const Inside inside(inside_);
  TL_TRY(await_memory(deadline));
  struct Counted {
    const Engine::Visitor& visitor;
    std::size_t keys = 0;
  } counted{visitor};
  const auto visit = [](void* context, Bytes key, Bytes value, Lsn lsn) {
    Counted& into = *static_cast<Counted*>(context);
    ++into.keys;
    into.visitor(as_text(key), as_text(value), lsn);
  };
  while (!cursor.done) {
    cursor.position = table_->scan(cursor.position, kStepBytes, visit, &counted);
    cursor.done = cursor.position == 0;
    if (cursor.done || counted.keys >= keys_max) break;
    TL_TRY(pause(deadline));
  }
  return {};
}

/// Lets the others run between two steps.
Status Shard::pause(Instant deadline) {
  if (const Wakeup wakeup = this_fiber::yield(); wakeup == Wakeup::cancelled) return to_status(wakeup);
  if (reactor_.now() >= deadline) return ReactorErrc::deadline_exceeded;
  return {};
}

/// The page is copied into the call, so that a caller that has gone leaves nothing behind that is called.
Status Shard::copy_page(Call& call) {
  const auto visit = [](void* context, Bytes key, Bytes value, Lsn lsn) {
    static_cast<Step*>(context)->add(key, value, lsn);
  };
  TL_TRY(await_memory(call.deadline));
  std::string& page = call.value;
  std::size_t keys = 0;
  while (!call.cursor.done) {
    const std::size_t before = page.size();
    make_room(page, kStepBytes);
    Step step(page);
    const std::uint64_t next = table_->scan(call.cursor.position, kStepBytes, visit, &step);
    if (before != 0 && page.size() + step.large_bytes > kScanPageBytes) {
      page.resize(before);  // the next page begins with this step
      break;
    }
    // All are pinned before the first suspension.
    for (Step::Large& large : step.large) {
      large.pin = table_->pin(hash_key(config_.routing_seed, as_bytes(large.key)), as_bytes(large.key));
    }
    make_room(page, step.large_bytes);
    for (const Step::Large& large : step.large) {
      const Bytes value = large.pin.value();
      step.head(large.key, value.size(), large.lsn);
      for (std::size_t at = 0; at < value.size(); at += kStepBytes) {
        page.append(as_text(value.subspan(at, std::min(kStepBytes, value.size() - at))));
        TL_TRY(pause(call.deadline));
      }
    }
    call.cursor = {next, next == 0};
    keys += step.keys;
    if (call.cursor.done || keys >= call.keys_max) break;
    TL_TRY(pause(call.deadline));
  }
  return {};
}

}  // namespace tidelock
