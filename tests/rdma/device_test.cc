// Which device, port and GID is chosen, and what is said where none fits.
#include <cerrno>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/rdma/device.h>
#include <tidelock/rdma/errc.h>

#include "fake/fake_verbs.h"
#include "has.h"

using namespace tidelock;
using tidelock::test::has;

namespace {

RdmaDevice device_of(const std::string& name, bool active, std::vector<RdmaGid> gids) {
  RdmaDevice device;
  device.name = name;
  RdmaPort port;
  port.active = active;
  port.state = active ? "active" : "down";
  port.mtu_bytes = 1024;
  port.gids = std::move(gids);
  device.ports.push_back(port);
  return device;
}

RdmaGid link_local() { return {0, true, "", 2}; }
RdmaGid roce_v2(std::uint32_t index, const std::string& ipv4) { return {index, true, ipv4, 2}; }
RdmaGid roce_v1(std::uint32_t index, const std::string& ipv4) { return {index, false, ipv4, 2}; }

std::vector<RdmaDevice> two_devices() {
  return {device_of("left", true, {link_local(), roce_v2(1, "10.0.0.1")}),
          device_of("right", true, {link_local(), roce_v1(1, "10.0.0.2"), roce_v2(2, "10.0.0.2")})};
}

}  // namespace

TEST_CASE("rdma/device: neither name nor address: the first that is usable, never its link-local GID 0") {
  const auto place = choose_rdma_place(two_devices(), {});
  REQUIRE(place);
  CHECK(place->device == "left");
  CHECK(place->gid_index == 1);
  CHECK(place->address == "10.0.0.1");
  CHECK(place->mtu_bytes == 1024);
}

TEST_CASE("rdma/device: by name, by address, by both; a RoCEv1 GID of the address is passed over") {
  for (const RdmaChoice& choice :
       {RdmaChoice{"right", ""}, RdmaChoice{"", "10.0.0.2"}, RdmaChoice{"right", "10.0.0.2"}}) {
    const auto place = choose_rdma_place(two_devices(), choice);
    REQUIRE(place);
    CHECK(place->device == "right");
    CHECK(place->gid_index == 2);
  }
}

TEST_CASE("rdma/device: a name or address that nobody has: the error lists what there is") {
  for (const RdmaChoice& choice :
       {RdmaChoice{"middle", ""}, RdmaChoice{"", "10.9.9.9"}, RdmaChoice{"left", "10.0.0.2"}}) {
    const auto place = choose_rdma_place(two_devices(), choice);
    REQUIRE_FALSE(place);
    CHECK(place.error() == RdmaErrc::no_device);
    CHECK(has(place.error(), "left (10.0.0.1)"));
    CHECK(has(place.error(), "right (10.0.0.2)"));
    CHECK(has(place.error(), choice.address.empty() ? choice.device.c_str() : choice.address.c_str()));
  }
}

TEST_CASE("rdma/device: no device at all: the error says how to get one") {
  const auto place = choose_rdma_place(std::vector<RdmaDevice>{}, {});
  REQUIRE_FALSE(place);
  CHECK(place.error() == RdmaErrc::no_device);
  CHECK(has(place.error(), "rdma link add"));
}

TEST_CASE("rdma/device: a port that is down is passed over, and named if there is no other") {
  auto devices = two_devices();
  devices[0].ports[0].active = false;
  devices[0].ports[0].state = "down";
  const auto other = choose_rdma_place(devices, {});
  REQUIRE(other);
  CHECK(other->device == "right");
  for (const RdmaChoice& choice : {RdmaChoice{"left", ""}, RdmaChoice{"", "10.0.0.1"}}) {
    const auto place = choose_rdma_place(devices, choice);
    REQUIRE_FALSE(place);
    CHECK(place.error() == RdmaErrc::port_down);
    CHECK(has(place.error(), "left"));
    CHECK(has(place.error(), "down"));
    CHECK(has(place.error(), "ip link set"));
  }
}

TEST_CASE("rdma/device: a device with no RoCEv2 GID of an IPv4 address is never chosen") {
  const std::vector<RdmaDevice> bare{device_of("bare", true, {link_local(), roce_v1(1, "10.0.0.3")})};
  for (const RdmaChoice& choice : {RdmaChoice{}, RdmaChoice{"bare", ""}}) {
    const auto place = choose_rdma_place(bare, choice);
    REQUIRE_FALSE(place);
    CHECK(place.error() == RdmaErrc::no_gid);
    CHECK(has(place.error(), "bare"));
    CHECK(has(place.error(), "ip addr add"));
  }
  const auto empty = choose_rdma_place({device_of("none", true, {})}, {});
  REQUIRE_FALSE(empty);
  CHECK(empty.error() == RdmaErrc::no_gid);
}

TEST_CASE("rdma/device: GID 0 is taken only where it is what was asked for") {
  const std::vector<RdmaDevice> devices{device_of("zero", true, {roce_v2(0, "10.0.0.4")})};
  const auto place = choose_rdma_place(devices, {"", "10.0.0.4"});
  REQUIRE(place);
  CHECK(place->gid_index == 0);
}

TEST_CASE("rdma/device: what verbs lists is what is chosen from") {
  fake::reset();
  const auto devices = list_rdma_devices();
  REQUIRE(devices);
  REQUIRE(devices->size() == 2);
  const RdmaPort& port = (*devices)[0].ports.at(0);
  CHECK((*devices)[0].name == "fake0");
  CHECK(port.active);
  CHECK(port.mtu_bytes == 4096);
  REQUIRE(port.gids.size() == 2);
  CHECK(port.gids[0].ipv4.empty());
  CHECK(port.gids[1].ipv4 == "10.0.0.1");
  const auto place = choose_rdma_place(RdmaChoice{"", "10.0.0.2"});
  REQUIRE(place);
  CHECK(place->device == "fake1");
  CHECK(place->gid_index == 1);

  fake::DeviceConfig config = fake::device_config("fake1");
  config.port_state = IBV_PORT_DOWN;
  fake::change_device("fake1", config);
  CHECK(choose_rdma_place(RdmaChoice{"fake1", ""}).error() == RdmaErrc::port_down);

  fake::fail_call(fake::Call::open_device, EACCES);
  const auto other = list_rdma_devices();  // one that cannot be opened does not hide another
  REQUIRE(other);
  REQUIRE(other->size() == 1);
  CHECK(other->front().name == "fake1");
  fake::fail_call(fake::Call::open_device, EACCES, 0, 2);
  const auto closed = list_rdma_devices();
  REQUIRE_FALSE(closed);
  CHECK(closed.error().code() == std::error_code(EACCES, std::generic_category()));
  CHECK(has(closed.error(), "RDMA device fake"));

  fake::set_devices({});
  CHECK(list_rdma_devices()->empty());
  CHECK(choose_rdma_place(RdmaChoice{}).error() == RdmaErrc::no_device);
  fake::reset();
}
