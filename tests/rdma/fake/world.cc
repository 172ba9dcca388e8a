#include "world.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <sys/eventfd.h>

namespace tidelock::fake {

void die(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("fake verbs: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

EventFd::EventFd() : fd_(eventfd(0, EFD_CLOEXEC)) {
  if (fd_ < 0) die("eventfd: %s", std::strerror(errno));
}

EventFd::~EventFd() { close(fd_); }

bool EventFd::blocking() const { return (fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0; }

void EventFd::raise() {
  const std::uint64_t one = 1;
  if (write(fd_, &one, sizeof(one)) != sizeof(one)) die("eventfd write: %s", std::strerror(errno));
}

/// Called with something raised only, so it does not block.
void EventFd::clear() {
  std::uint64_t count = 0;
  if (read(fd_, &count, sizeof(count)) != sizeof(count)) die("eventfd read: %s", std::strerror(errno));
}

World& world() {
  static World the_world;
  return the_world;
}

namespace {

in_addr parse_ipv4(const std::string& ipv4) {
  in_addr address{};
  if (inet_pton(AF_INET, ipv4.c_str(), &address) != 1) die("'%s' is no IPv4 address", ipv4.c_str());
  return address;
}

}  // namespace

Gid link_local_gid(std::uint8_t n) {
  Gid gid{{}, IBV_GID_TYPE_ROCE_V2};
  gid.gid.raw[0] = 0xfe;
  gid.gid.raw[1] = 0x80;
  gid.gid.raw[15] = n;
  return gid;
}

Gid mapped_gid(const std::string& ipv4) {
  Gid gid{{}, IBV_GID_TYPE_ROCE_V2};
  gid.gid.raw[10] = gid.gid.raw[11] = 0xff;
  const in_addr address = parse_ipv4(ipv4);
  std::memcpy(gid.gid.raw + 12, &address, sizeof(address));
  return gid;
}

std::vector<Gid> gids_of(const Device& device) {
  if (!device.config.gids.empty()) return device.config.gids;
  const in_addr address = parse_ipv4(device.config.ipv4);
  return {link_local_gid(static_cast<std::uint8_t>(ntohl(address.s_addr) & 0xff)),
          mapped_gid(device.config.ipv4)};
}

Device* find_device(World& w, const std::string& name) {
  for (auto& device : w.devices)
    if (device->config.name == name) return device.get();
  return nullptr;
}

Device& need_device(World& w, const std::string& name) {
  Device* device = find_device(w, name);
  if (device == nullptr) die("no device '%s'", name.c_str());
  return *device;
}

Device* device_by_gid(World& w, const ibv_gid& gid) {
  for (auto& device : w.devices)
    for (const Gid& own : gids_of(*device))
      if (std::memcmp(own.gid.raw, gid.raw, sizeof(gid.raw)) == 0) return device.get();
  return nullptr;
}

bool reaches(const World& w, const Device& from, const Device& to) {
  return !from.down && !to.down && from.config.port_state == IBV_PORT_ACTIVE &&
         to.config.port_state == IBV_PORT_ACTIVE && w.cuts.count({&from, &to}) == 0;
}

int failure_of(World& w, Call call) {
  const auto found = w.failures.find(call);
  if (found == w.failures.end()) return 0;
  Failure& failure = found->second;
  if (failure.skip > 0) {
    --failure.skip;
    return 0;
  }
  const int error = failure.error;
  if (--failure.times == 0) w.failures.erase(found);
  return error;
}

Device& device_of(ibv_context* context) { return *static_cast<Device*>(context->device); }

}  // namespace tidelock::fake
