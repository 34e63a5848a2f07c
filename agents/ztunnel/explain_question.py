"""From what a person types, ``shop/cart shop/db:5432``, to a question for `explain`.

SRC is ``NS/NAME``, ``NAME`` (a unique prefix is enough), ``uid:U`` or an address of a workload; DST
an ENDPOINT whose name may be a service's hostname, ``svc.ns``, ``NS/SERVICE``, ``NS/POD`` or
``POD``. Names are looked for among all workloads, which takes a third of a second for 100,000 of
them: a uid or an address is found at once.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Sequence
from random import Random
from typing import Final

from nodenet.agents.ztunnel.explain import Mesh, Question, explain
from nodenet.agents.ztunnel.explanation import Explanation
from nodenet.endpoint import IPAddress, parse_endpoint, unmapped
from nodenet.errors import NotFound, UsageError
from nodenet.mesh.model import Endpoint, Service, Workload, ip_of
from nodenet.mesh.policy_json import policies_from_json
from nodenet.mesh.state import MeshState

_UID: Final = "uid:"
#: Candidates named in an error.
_NAMED_MAX: Final = 5


def answer(
    mesh: Mesh,
    src: str,
    dst: str,
    *,
    rng: Random,
    node: str = "",
    policies: bytes | None = None,
) -> Explanation:
    """Question and answer in one, as the admin surface needs it.

    ``policies`` is JSON of policies to take in addition; PolicyRefused when one cannot be read.
    """
    others = policies_from_json(policies) if policies is not None else ()
    return explain(mesh, question(mesh, src, dst, node=node), rng=rng, policies=others)


def question(mesh: Mesh, src: str, dst: str, *, node: str = "") -> Question:
    """The question. ``node``: SRC has to run there, where its proxy is; empty: anywhere (a dump).

    NotFound when a name is not known, UsageError when it may mean several or DST has no port.
    """
    source = find_source(mesh, src)
    if node and source.node and source.node != node:
        raise NotFound(
            f"cannot explain: {_name(source)} is on node {source.node}, this is {node}; "
            f"run it there, or give a dump: -f {source.node}.json"
        )
    destination = find_destination(mesh, dst, source)
    return Question(source=source, client=_client(source, destination.ip), destination=destination)


def find_source(mesh: Mesh, text: str) -> Workload:
    """The workload that SRC names."""
    state = mesh.state
    if text.startswith(_UID):
        found = state.workload(text.removeprefix(_UID))
        if found is None:
            raise NotFound(f"no workload {text} among {len(state.workloads)} known")
        return found
    address = _address(text)
    if address is not None:
        found = state.workload_at(mesh.network, address)
        if found is None:
            raise NotFound(f"no workload has {text} in network {mesh.network!r}")
        return found
    named = _workloads_named(state, text)
    if not named:
        near = difflib.get_close_matches(text, {_name(each) for each in state.workloads}, n=1)
        hint = f"nearest: {near[0]}" if near else None
        raise NotFound(f"no workload {text} in {len(state.workloads)} known", hint=hint)
    return _only(named, text)


def find_destination(mesh: Mesh, text: str, source: Workload) -> Endpoint:
    """The address that DST stands for, as ``source`` would get it from the DNS."""
    wanted = parse_endpoint(text)
    if wanted.address is not None:
        return Endpoint(unmapped(wanted.address), wanted.port)
    assert wanted.name is not None  # one of the two is set
    state, name = mesh.state, wanted.name
    service = _service_named(state, name, source.namespace)
    if service is not None:
        ip = _service_address(state, service, source)
        if ip is None:
            raise NotFound(f"{service.key} has no address in network {source.network!r}")
        return Endpoint(ip, wanted.port)
    workloads = _workloads_named(state, name)
    if "/" not in name:
        # a name alone is meant in the own namespace first, as a service's is
        workloads = [w for w in workloads if w.namespace == source.namespace] or workloads
    if not workloads:
        raise NotFound(
            f"{name}: no such service or pod among {len(state.workloads)} workloads, "
            f"{len(state.services)} services; give an address"
        )
    workload = _only(workloads, name)
    if not workload.addresses:
        raise NotFound(f"{_name(workload)} has no address; give one")
    return Endpoint(_alike(workload.addresses, source), wanted.port)


def _service_named(state: MeshState, name: str, namespace: str) -> Service | None:
    """By hostname; by ``svc.ns`` or ``NS/SERVICE``; by the first label in the own namespace."""
    exact = state.service_named(name, namespace)
    if exact is not None:
        return exact
    if "/" in name:
        of, _, short = name.partition("/")
    else:
        short, _, of = name.partition(".")
        of = of.removesuffix(".svc") or namespace
    found = [each for each in state.services if each.namespace == of and each.name == short]
    return found[0] if found else None


def _service_address(state: MeshState, service: Service, source: Workload) -> IPAddress | None:
    vips = [vip.address for vip in service.vips if vip.network == source.network]
    if vips:
        return _alike(vips, source)
    # headless: the DNS gives the addresses of its endpoints
    for uid in state.endpoints(service):
        workload = state.workload(uid)
        if workload is not None and workload.addresses:
            return _alike(workload.addresses, source)
    return None


def _workloads_named(state: MeshState, text: str) -> list[Workload]:
    """Those with exactly that name, else those whose name begins so."""
    namespace, slash, name = text.rpartition("/")
    exact: list[Workload] = []
    longer: list[Workload] = []
    for each in state.workloads:
        if slash and each.namespace != namespace:
            continue
        if each.name == name:
            exact.append(each)
        elif each.name.startswith(name):
            longer.append(each)
    return exact or longer


def _only(found: Sequence[Workload], text: str) -> Workload:
    if len(found) == 1:
        return found[0]
    uids = sorted(each.uid for each in found)
    more = len(uids) - _NAMED_MAX
    listed = " ".join(f"uid:{uid}" for uid in uids[:_NAMED_MAX])
    rest = f" and {more} more" if more > 0 else ""
    raise UsageError(f"{text} may be {len(uids)} workloads: {listed}{rest}; name one by its uid")


def _client(source: Workload, towards: IPAddress) -> IPAddress:
    """Its address of the destination's family, else any."""
    alike = [ip for ip in source.ips if ip.version == towards.version]
    if alike or source.ips:
        return (alike or source.ips)[0]
    raise NotFound(f"{_name(source)} has no address, so nothing can come from it")


def _alike(packed: Sequence[bytes], source: Workload) -> IPAddress:
    """Of the family of the source's first address, as its resolver would prefer."""
    wanted = len(source.addresses[0]) if source.addresses else 4
    return ip_of(next((each for each in packed if len(each) == wanted), packed[0]))


def _address(text: str) -> IPAddress | None:
    try:
        return unmapped(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return None


def _name(workload: Workload) -> str:
    return f"{workload.namespace}/{workload.name}"
