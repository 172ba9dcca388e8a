#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>

#include "doctor_rdma.h"

namespace tidelock::tools {
namespace {

struct Destroy {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
  void operator()(ibv_pd* pd) const { ibv_dealloc_pd(pd); }
  void operator()(ibv_cq* cq) const { ibv_destroy_cq(cq); }
  void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
template <class T>
using Handle = std::unique_ptr<T, Destroy>;

std::string error_text(int number) {
  std::array<char, 256> buffer{};
  return ::strerror_r(number, buffer.data(), buffer.size());
}

const char* layer_name(std::uint8_t layer) {
  switch (layer) {
    case IBV_LINK_LAYER_ETHERNET:
      return "Ethernet";
    case IBV_LINK_LAYER_INFINIBAND:
      return "InfiniBand";
    default:
      return "unspecified";
  }
}

/// ::ffff:a.b.c.d
bool is_ipv4(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix.data(), kPrefix.size()) == 0;
}

void find_gid(const std::vector<ibv_gid_entry>& gids, RdmaPortFacts& port) {
  for (const ibv_gid_entry& entry : gids) {
    if (entry.port_num != port.number) continue;
    std::array<char, IF_NAMESIZE> netdev{};
    if (port.netdev.empty() && ::if_indextoname(entry.ndev_ifindex, netdev.data()) != nullptr)
      port.netdev = netdev.data();
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || !is_ipv4(entry.gid) || port.gid_index) continue;
    std::array<char, INET_ADDRSTRLEN> address{};
    ::inet_ntop(AF_INET, entry.gid.raw + 12, address.data(), address.size());
    port.gid_index = entry.gid_index;
    port.address = address.data();
  }
}

std::vector<ibv_gid_entry> gid_table(ibv_context* context) {
  // Only those that are set come back. An ioctl takes at most 64 KiB of them.
  constexpr std::size_t kGidsMax = 65'535 / sizeof(ibv_gid_entry);
  std::vector<ibv_gid_entry> gids(kGidsMax);
  const ssize_t got = ibv_query_gid_table(context, gids.data(), gids.size(), 0);
  gids.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return gids;
}

std::optional<std::uint32_t> find_inline(ibv_context* context) {
  const Handle<ibv_pd> pd(ibv_alloc_pd(context));
  const Handle<ibv_cq> cq(ibv_create_cq(context, 16, nullptr, nullptr, 0));
  if (pd == nullptr || cq == nullptr) return {};
  for (const std::uint32_t bytes : {1024U, 512U, 256U, 128U, 64U, 0U}) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq.get();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {
        .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = bytes};
    const Handle<ibv_qp> pair(ibv_create_qp(pd.get(), &wanted));
    if (pair != nullptr) return wanted.cap.max_inline_data;
  }
  return {};
}

RdmaDeviceFacts ask(ibv_device* device) {
  RdmaDeviceFacts facts;
  facts.name = ibv_get_device_name(device);
  const Handle<ibv_context> context(ibv_open_device(device));
  ibv_device_attr attributes{};
  if (context == nullptr) {
    facts.error = error_text(errno);
    return facts;
  }
  // Its answer is the errno value; errno itself need not be set.
  if (const int code = ibv_query_device(context.get(), &attributes); code != 0) {
    facts.error = error_text(code);
    return facts;
  }
  const auto count = [](int number) { return number < 0 ? 0 : static_cast<std::uint64_t>(number); };
  facts.max_qp_wr = count(attributes.max_qp_wr);
  facts.max_sge = count(attributes.max_sge);
  facts.max_cqe = count(attributes.max_cqe);
  facts.max_inline = find_inline(context.get());
  const auto gids = gid_table(context.get());
  for (std::uint32_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    RdmaPortFacts port;
    port.number = number;
    ibv_port_attr of_port{};
    if (ibv_query_port(context.get(), static_cast<std::uint8_t>(number), &of_port) == 0) {
      port.state = ibv_port_state_str(of_port.state);
      port.active = of_port.state == IBV_PORT_ACTIVE;
      port.link_layer = layer_name(of_port.link_layer);
      // A driver's number: one that the verbs do not know says nothing.
      if (of_port.active_mtu >= IBV_MTU_256 && of_port.active_mtu <= IBV_MTU_4096)
        port.mtu_bytes = 128U << of_port.active_mtu;
    }
    find_gid(gids, port);
    facts.ports.push_back(std::move(port));
  }
  return facts;
}

}  // namespace

RdmaFacts probe_rdma() {
  RdmaFacts facts;
  int count = 0;
  const Handle<ibv_device*> list(ibv_get_device_list(&count));
  if (list == nullptr) facts.list_error = error_text(errno);
  for (int i = 0; list != nullptr && i < count; ++i) facts.devices.push_back(ask(list.get()[i]));
  const Handle<rdma_event_channel> channel(rdma_create_event_channel());
  if (channel == nullptr) facts.cm_error = error_text(errno);
  return facts;
}

}  // namespace tidelock::tools
