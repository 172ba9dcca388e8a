# shellcheck shell=bash
# Sourced by main.sh: two soft-RoCE devices in one machine, rxe_v0 on v0 (10.0.0.1) and rxe_v1 on v1 (10.0.0.2). Each
# interface is one end of a veth pair; the other ends, p0 and p1, are in a namespace that forwards between them, as the
# ports of a switch. So a port can go down without either interface being switched off (lab-link). (rxe itself lives in
# the first network namespace only, so the devices cannot be in two of them.)
set_net() { echo "$2" >"/proc/sys/net/$1"; }

set_net ipv6/conf/all/disable_ipv6 1
ip netns add switch || return
# shellcheck disable=SC2016  # the namespace's shell is to expand it
ip netns exec switch bash -c '
  cd /proc/sys/net
  for of in all default; do
    echo 1 >ipv6/conf/$of/disable_ipv6
    echo 1 >ipv4/conf/$of/forwarding
    echo 0 >ipv4/conf/$of/rp_filter
    echo 0 >ipv4/conf/$of/send_redirects
  done' || return
# 4200: an RDMA MTU of 4096 and its headers. The hardware addresses are fixed, for lab-neighbours.
ip -batch - <<'LINKS' || return
link set lo up
link add v0 address 52:54:00:00:00:01 mtu 4200 type veth peer name p0 address 52:54:00:00:01:01 mtu 4200 netns switch
link add v1 address 52:54:00:00:00:02 mtu 4200 type veth peer name p1 address 52:54:00:00:01:02 mtu 4200 netns switch
address add 10.0.0.1/24 dev v0
address add 10.0.0.2/24 dev v1
link set v0 up
link set v1 up
LINKS
for end in all v0 v1; do
  # Both addresses are this machine's own: what arrives from one of them at the other is to be believed.
  set_net ipv4/conf/$end/accept_local 1
  set_net ipv4/conf/$end/rp_filter 0
  set_net ipv4/conf/$end/arp_ignore 1
done
lab-link up || return
rdma --batch - <<'DEVICES' || return
link add rxe_v0 type rxe netdev v0
link add rxe_v1 type rxe netdev v1
DEVICES

export TIDELOCK_VERBS_DEVICE=rxe_v0 TIDELOCK_VERBS_PEER_DEVICE=rxe_v1
export TIDELOCK_LAB_ADDRESS=10.0.0.1 TIDELOCK_LAB_PEER_ADDRESS=10.0.0.2
