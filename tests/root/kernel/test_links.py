"""Links: attach, swap, pin, describe, and what is left when the target goes."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from nodenet import abi
from nodenet.errors import NotFound, NotSupported
from nodenet.kernel import netns
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.links import (
    Link,
    LinkFailed,
    LinkType,
    create_iter_link,
    create_link,
    link_by_id,
    open_link,
    read_iter,
)
from nodenet.kernel.loader import Program, load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

SOCKET_COOKIE = 57


@pytest.fixture
def programs(maps: dict[str, Map], shared_cache: None) -> Iterator[dict[str, Program]]:
    loaded = load_programs(maps)
    yield loaded
    for one in loaded.values():
        one.close()


@pytest.fixture
def group_fd(cgroup: Cgroup) -> Iterator[int]:
    fd = os.open(cgroup.path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def namespace() -> Iterator[NetNs]:
    name = f"nn-{secrets.token_hex(4)}"
    with netns.create(name) as made:
        yield made
    if name in netns.names():
        netns.delete(name)


def test_a_cgroup_link_says_where_it_is(
    programs: dict[str, Program], cgroup: Cgroup, group_fd: int
) -> None:
    for defn in abi.PROGRAMS.values():
        if defn.attach not in ("root", "agent"):
            continue
        with create_link(programs[defn.name], group_fd) as link:
            info = link.info()
            assert (info.type, info.type_name) == (LinkType.CGROUP, "cgroup")
            assert info.prog_id == programs[defn.name].id
            assert info.attach_type == defn.attach_type
            assert info.cgroup_id == cgroup.id == os.stat(cgroup.path).st_ino


def test_an_unpinned_link_ends_with_its_descriptor(
    programs: dict[str, Program], group_fd: int
) -> None:
    link = create_link(programs["nn_sockops"], group_fd)
    ident = link.info().id
    link_by_id(ident).close()
    link.close()
    link.close()
    with pytest.raises(NotFound, match=f"no link with id {ident}"):
        link_by_id(ident)


def test_a_pinned_link_stays(
    programs: dict[str, Program], group_fd: int, instance: Instance
) -> None:
    instance.links.mkdir()
    path = instance.links / "sockops"
    with create_link(programs["nn_sockops"], group_fd) as link:
        link.pin(path)
        ident = link.info().id
        with pytest.raises(FileExistsError):
            link.pin(path)
    with open_link(path) as again:
        assert again.info().id == ident
    path.unlink()
    with pytest.raises(NotFound):
        open_link(path)


def test_the_program_of_a_link_is_swapped(
    programs: dict[str, Program], maps: dict[str, Map], group_fd: int
) -> None:
    with create_link(programs["nn_connect4"], group_fd) as link:
        before = link.info()
        newer = load_programs(maps, only={"nn_connect4"})["nn_connect4"]
        with newer:
            link.update(newer.fd)
            after = link.info()
            assert (after.id, after.prog_id) == (before.id, newer.id)
            assert before.prog_id != newer.id
        with pytest.raises(LinkFailed, match="update link: Invalid argument"):
            link.update(programs["nn_sk_lookup"].fd)


def test_a_detached_link_stays_dead(programs: dict[str, Program], group_fd: int) -> None:
    with create_link(programs["nn_connect4"], group_fd) as link:
        link.detach()
        assert link.info().cgroup_id == 0


def test_a_namespace_link_dies_with_its_namespace(
    programs: dict[str, Program], namespace: NetNs
) -> None:
    with create_link(programs["nn_sk_lookup"], namespace.fd) as link:
        info = link.info()
        assert info.type == LinkType.NETNS
        assert info.netns_ino == os.fstat(namespace.fd).st_ino
        assert info.attach_type == abi.PROGRAMS["nn_sk_lookup"].attach_type
        name = os.path.basename(namespace.path)
        netns.delete(name)
        namespace.close()
        # the kernel takes a namespace down in the background
        until_gone(link)


def until_gone(link: Link) -> None:
    deadline = time.monotonic() + 20
    while link.info().netns_ino:
        assert time.monotonic() < deadline, "the link still names its namespace"
        time.sleep(0.005)


def test_attaching_to_the_wrong_thing(
    programs: dict[str, Program], group_fd: int, namespace: NetNs
) -> None:
    with pytest.raises(LinkFailed, match="attach nn_connect4: "):
        create_link(programs["nn_connect4"], namespace.fd)
    with pytest.raises(NotSupported, match="explain"):
        create_link(programs["nn_explain"], group_fd)


def test_the_iterator_shows_what_socket_storage_holds(
    programs: dict[str, Program], maps: dict[str, Map], instance: Instance
) -> None:
    instance.links.mkdir()
    pin = instance.links / "iter_conns"
    with create_iter_link(programs["nn_iter_conns"], maps["conns"]) as link:
        info = link.info()
        assert (info.type, info.iter_target) == (LinkType.ITER, "bpf_sk_storage_map")
        assert info.map_id == maps["conns"].id
        assert read_iter(link) == b""
        link.pin(pin)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = []
        for n in range(300):  # more than one read of the kernel's buffer
            client = socket.create_connection(listener.getsockname())
            pairs += [client, listener.accept()[0]]
            record = abi.CONN.pack(cookie=cookie(client), pid=n, dir=abi.Direction.OUT)
            maps["conns"].update(struct.pack("<i", client.fileno()), record)
        raw = read_iter(pin)
        assert len(raw) == 300 * abi.EVENT.size
        events = [
            abi.EVENT.unpack(raw[i : i + abi.EVENT.size])
            for i in range(0, len(raw), abi.EVENT.size)
        ]
        assert {e["cookie"] for e in events} == {cookie(one) for one in pairs[::2]}
        assert {e["pid"] for e in events} == set(range(300))
        assert {e["kind"] for e in events} == {abi.EventKind.LIVE}
        for one in pairs:
            one.close()
    pin.unlink()
    with pytest.raises(NotFound, match=f"no pinned iterator: {pin}"):
        read_iter(pin)


def cookie(of: socket.socket) -> int:
    return int.from_bytes(of.getsockopt(socket.SOL_SOCKET, SOCKET_COOKIE, 8), "little")
