/// Small things under the fake: the abort with a message, a pollable event, and the set of live handles.
/// Thread:   Registry: the owner of World::mutex
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

namespace tidelock::fake {

/// For what only a programmer's fault can bring about.
[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Readable while something is queued; each raise() wakes edge-triggered waiters, too.
class EventFd {
 public:
  EventFd();
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  int fd() const { return fd_; }
  bool blocking() const;
  void raise();
  void clear();

 private:
  int fd_;
};

/// Live handles: by serial for order and for weak references, by address for what users hand in.
template <typename T, typename Public>
class Registry {
 public:
  explicit Registry(const char* what) : what_(what) {}

  T& add(std::unique_ptr<T> object) {
    T& result = *object;
    by_address_[static_cast<const Public*>(&result)] = result.serial;
    by_serial_.emplace(result.serial, std::move(object));
    return result;
  }
  T* find(std::uint64_t serial) {
    const auto found = by_serial_.find(serial);
    return found == by_serial_.end() ? nullptr : found->second.get();
  }
  /// `call` is named in the message if the handle is not live.
  T& check(const Public* handle, const char* call) {
    const auto found = by_address_.find(handle);
    if (found == by_address_.end()) die("%s: no live %s (destroyed before?)", call, what_);
    return *by_serial_.at(found->second);
  }
  void remove(T& object) {
    by_address_.erase(static_cast<const Public*>(&object));
    by_serial_.erase(object.serial);
  }
  std::size_t size() const { return by_serial_.size(); }
  auto begin() { return by_serial_.begin(); }
  auto end() { return by_serial_.end(); }

 private:
  const char* what_;
  std::unordered_map<const void*, std::uint64_t> by_address_;
  std::map<std::uint64_t, std::unique_ptr<T>> by_serial_;
};

}  // namespace tidelock::fake
