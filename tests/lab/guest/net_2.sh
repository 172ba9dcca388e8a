# shellcheck shell=bash disable=SC2154,SC2086  # main.sh has `machine`, one letter
# Sourced by main.sh: this machine's end of a wire between two machines. Machine a has rxe_v0 on v0, 10.0.0.1; machine b
# has rxe_v1 on v1, 10.0.0.2: the names and addresses that both have in one machine (net_1.sh).
case $machine in
  a) own=1 peer=2 end=v0 ;;
  b) own=2 peer=1 end=v1 ;;
esac
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip -batch - <<LINKS || return
link set lo up
link set eth0 name $end mtu 4200
address add 10.0.0.$own/24 dev $end
link set $end up
LINKS
lab-neighbours
rdma link add rxe_$end type rxe netdev $end || return

export TIDELOCK_VERBS_DEVICE=rxe_$end
export TIDELOCK_LAB_ADDRESS=10.0.0.$own TIDELOCK_LAB_PEER_ADDRESS=10.0.0.$peer
