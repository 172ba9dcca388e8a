// What `tidelock doctor` makes of RDMA devices, as verbs would describe them.
#include "doctor_rdma.h"

#include <string>

#include <doctest/doctest.h>

#include "planted_tree.h"

using namespace tidelock::tools;
using tidelock::test::find;
using tidelock::test::has;
using tidelock::test::PlantedTree;

namespace {

DoctorNeeds needs_of(bool verbs) {
  DoctorNeeds needs;
  needs.shards = 2;
  if (verbs) needs.link = DoctorLink::verbs;
  return needs;
}

RdmaFacts one_device() {
  RdmaFacts facts;
  RdmaDeviceFacts device;
  device.name = "rxe0";
  device.max_qp_wr = 1 << 20;
  device.max_sge = 32;
  device.max_cqe = 32'767;
  device.max_inline = 512;
  RdmaPortFacts port;
  port.state = "active";
  port.active = true;
  port.link_layer = "Ethernet";
  port.mtu_bytes = 1024;
  port.gid_index = 1;
  port.address = "10.0.0.1";
  port.netdev = "eth0";
  device.ports = {port};
  facts.devices = {device};
  return facts;
}

PlantedTree machine_with_rdma() {
  return PlantedTree({{"dev/infiniband/uverbs0", ""},
                      {"dev/infiniband/rdma_cm", ""},
                      {"sys/class/infiniband/rxe0/x", ""},
                      {"sys/class/net/eth0/operstate", "up\n"}});
}

}  // namespace

TEST_SUITE_BEGIN("tools/doctor");

TEST_CASE("rdma: a machine without is warned of, and refused if verbs is asked for") {
  const PlantedTree tree({{"sys/class/net/lo/address", ""}, {"sys/class/net/ens3/address", ""}});
  RdmaFacts facts;
  facts.list_error = "Function not implemented";
  facts.cm_error = "No such device";
  for (const bool verbs : {false, true}) {
    CAPTURE(verbs);
    const Checks checks = check_rdma(tree.files(), facts, needs_of(verbs));
    CHECK(checks.size() == 2);
    const Check& devices = find(checks, "rdma devices");
    CHECK(devices.status == (verbs ? CheckStatus::error : CheckStatus::warning));
    CHECK(has(devices.value, "driver"));
    CHECK(has(devices.fix, "modprobe rdma_rxe; sudo rdma link add rxe0 type rxe netdev ens3"));
    CHECK(find(checks, "rdma_cm").status == devices.status);
    CHECK(find(checks, "rdma_cm").fix == "sudo modprobe rdma_ucm");
  }
}

TEST_CASE("rdma: an interface's name never becomes a command") {
  const PlantedTree tree({{"sys/class/net/a;reboot/address", ""}});
  CHECK(has(find(check_rdma(tree.files(), {}, needs_of(false)), "rdma devices").fix, "netdev NETDEV"));
}

TEST_CASE("rdma: a device in the kernel that this process does not see") {
  const PlantedTree tree({{"sys/class/infiniband/mlx5_0/x", ""}});
  CHECK(has(find(check_rdma(tree.files(), {}, needs_of(false)), "rdma devices").fix, "modprobe ib_uverbs"));
  const PlantedTree no_provider({{"sys/class/infiniband/mlx5_0/x", ""}, {"dev/infiniband/uverbs0", ""}});
  CHECK(has(find(check_rdma(no_provider.files(), {}, needs_of(false)), "rdma devices").fix,
            "ibverbs-providers"));
}

TEST_CASE("rdma: a usable port is all that it takes") {
  const PlantedTree tree = machine_with_rdma();
  for (const Check& check : check_rdma(tree.files(), one_device(), needs_of(true))) {
    CAPTURE(check.name);
    CHECK(check.status == CheckStatus::ok);
  }
  const Checks checks = check_rdma(tree.files(), one_device(), needs_of(true));
  CHECK(has(find(checks, "rdma rxe0/1").value, "active, Ethernet, MTU 1024, GID 1 10.0.0.1, eth0 up"));
  CHECK(has(find(checks, "rdma rxe0").value, "max_inline 512"));
}

TEST_CASE("rdma: a port that is down, has no address, or sits on an interface that is down") {
  const PlantedTree tree = machine_with_rdma();
  const auto port_check = [&](const auto& change, bool verbs) {
    RdmaFacts facts = one_device();
    change(facts.devices.front());
    return find(check_rdma(tree.files(), facts, needs_of(verbs)), "rdma rxe0/1");
  };
  const auto down = [](RdmaDeviceFacts& device) { device.ports.front().active = false; };
  CHECK(port_check(down, false).status == CheckStatus::warning);
  CHECK(port_check(down, true).status == CheckStatus::error);
  CHECK(port_check(down, true).fix == "sudo ip link set eth0 up");
  const auto no_gid = [](RdmaDeviceFacts& device) { device.ports.front().gid_index.reset(); };
  CHECK(has(port_check(no_gid, true).fix, "ip address add ADDRESS/24 dev eth0"));
  // Another port serves, so this one keeps nobody from starting.
  const auto second = [](RdmaDeviceFacts& device) {
    device.ports.push_back(device.ports.front());
    device.ports.back().number = 2;
    device.ports.front().active = false;
  };
  CHECK(port_check(second, true).status == CheckStatus::warning);

  tree.plant("sys/class/net/eth0/operstate", "down\n");
  CHECK(port_check([](RdmaDeviceFacts&) {}, true).status == CheckStatus::error);
  tree.plant("sys/class/net/eth0/operstate", "unknown\n");
  CHECK(port_check([](RdmaDeviceFacts&) {}, true).status == CheckStatus::ok);
}

TEST_CASE("rdma: a device that cannot be opened, or is too small") {
  const PlantedTree tree = machine_with_rdma();
  RdmaFacts facts = one_device();
  facts.devices.front().max_qp_wr = 16;
  CHECK(find(check_rdma(tree.files(), facts, needs_of(true)), "rdma rxe0").status == CheckStatus::error);
  facts.devices.front().error = "Permission denied";
  const Check closed = find(check_rdma(tree.files(), facts, needs_of(false)), "rdma rxe0");
  CHECK(closed.status == CheckStatus::warning);
  CHECK(has(closed.value, "Permission denied"));
}

TEST_SUITE_END();
