# shellcheck shell=bash
# Sourced by main.sh: two soft-RoCE devices in one machine, on the two ends of a veth pair. rxe_v0 is 10.0.0.1, rxe_v1
# is 10.0.0.2. (rxe lives in the first network namespace only, so the ends cannot be in two of them.)
set_net() { echo "$2" >"/proc/sys/net/$1"; }

set_net ipv6/conf/all/disable_ipv6 1
# 4200: an RDMA MTU of 4096 and its headers. The hardware addresses are fixed, for lab-neighbours.
ip -batch - <<'LINKS' || return
link set lo up
link add v0 address 52:54:00:00:00:01 mtu 4200 type veth peer name v1 address 52:54:00:00:00:02 mtu 4200
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
lab-neighbours
rdma --batch - <<'DEVICES' || return
link add rxe_v0 type rxe netdev v0
link add rxe_v1 type rxe netdev v1
DEVICES

export TIDELOCK_VERBS_DEVICE=rxe_v0 TIDELOCK_VERBS_PEER_DEVICE=rxe_v1
export TIDELOCK_LAB_ADDRESS=10.0.0.1 TIDELOCK_LAB_PEER_ADDRESS=10.0.0.2
