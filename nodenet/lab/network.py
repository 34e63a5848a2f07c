"""A plan's namespaces, links, addresses and routes, made in the kernel.

Every pod and node has one route to everything: its gateway. The router between the nodes has a
route to each node's range and none to anything else, so a packet for an outside address ends there
with "network unreachable"; no link leads out of the lab.
"""

from __future__ import annotations

import ipaddress

from nodenet.lab.plan import Host, LabPlan, Node, Pod, namespace_name
from nodenet.lab.topology import Namespace, Netlink, Topology

_FORWARDING = {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1}
_DEFAULT_ROUTE = {4: ipaddress.ip_network("0.0.0.0/0"), 6: ipaddress.ip_network("::/0")}
#: Name of the one link of a pod, and of a node's link to the router.
UPLINK = "eth0"


def make_network(plan: LabPlan) -> None:
    """Makes everything; what exists under the plan's names is an error (NetNsExists).

    After a failure the namespaces made so far are left to the caller, who knows their names.
    """
    topology = Topology(prefix=namespace_name(plan.lab, ""))
    spaces = {host.name: topology.namespace(host.name) for host in plan.hosts}
    for host in (plan.router, *plan.nodes):
        spaces[host.name].sysctl(_FORWARDING)
    with spaces[plan.router.name].netlink() as router:
        for node in plan.nodes:
            router.veth(node.name, spaces[node.name], UPLINK)
            _gateway_side(router, node.name, plan.router, node)
        for node in plan.nodes:
            _node(plan, node, spaces)
        for node in plan.nodes:
            for net in (node.net4, node.net6):
                if net is not None:
                    router.route(net, dev=node.name, via=node.address(net.version))


def _node(plan: LabPlan, node: Node, spaces: dict[str, Namespace]) -> None:
    with spaces[node.name].netlink() as link:
        _client_side(link, node, plan.router)
        for pod in plan.pods_of(node):
            link.veth(pod.name, spaces[pod.name], UPLINK)
            _gateway_side(link, pod.name, node, pod)
            with spaces[pod.name].netlink() as inside:
                _client_side(inside, pod, node)


def _gateway_side(link: Netlink, dev: str, gateway: Host, client: Node | Pod) -> None:
    """The end of a link that others route through: its own address, a route to the one behind."""
    for address in gateway.addresses:
        link.address(dev, f"{address}/{address.max_prefixlen}")
    for address in client.addresses:
        link.route(
            f"{address}/{address.max_prefixlen}", dev=dev, source=gateway.address(address.version)
        )


def _client_side(link: Netlink, client: Node | Pod, gateway: Host) -> None:
    """The other end: its address, the gateway as neighbour, everything through the gateway."""
    for address in client.addresses:
        link.address(UPLINK, f"{address}/{address.max_prefixlen}")
    for address in gateway.addresses:
        link.route(f"{address}/{address.max_prefixlen}", dev=UPLINK)
        link.route(_DEFAULT_ROUTE[address.version], dev=UPLINK, via=address)
