"""Records to calls of a worker, as far as that goes without a namespace of one's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet import paths
from nodenet.agents.ztunnel.counters import PodSnapshot
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.pods import RecordPodSource
from nodenet.capture.records import PodRecord, write_record
from nodenet.kernel.netns import NetNs, host_path
from nodenet.paths import Instance

Until = Callable[[Callable[[], object]], None]


class Calls:
    """A worker that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def add_pod(self, pod: Pod, netns: NetNs) -> None:
        self.told.append(("add", pod.name))
        netns.close()

    def change_pod(self, pod: Pod) -> None:
        self.told.append(("change", pod.name))

    def remove_pod(self, cookie: int) -> None:
        self.told.append(("remove", cookie))

    def cut_pod(self, cookie: int) -> None:
        self.told.append(("cut", cookie))

    async def drain(self, seconds: float) -> int:
        raise NotImplementedError

    def snapshot(self) -> list[PodSnapshot]:
        raise NotImplementedError


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance whose run directory is the test's; it does not exist yet."""
    monkeypatch.setattr(paths, "RUN", tmp_path)
    return Instance("x")


@pytest.fixture
def source(loop: asyncio.AbstractEventLoop, instance: Instance) -> Iterator[RecordPodSource]:
    """The source of node None."""
    made = RecordPodSource(loop, instance, None)
    yield made
    made.close()


def record(**changes: object) -> PodRecord:
    facts: dict[str, object] = {
        "name": "shop/cart",
        "netns": "/run/netns/nn-no-such",
        "netns_inode": 1,
        "netns_cookie": 42,
        "pod_id": 1,
        "ips": ("10.0.0.1",),
        "backend": "ebpf",
        "enrolled_at": "2026-01-01T00:00:00.000000Z",
    }
    return PodRecord(**(facts | changes))  # type: ignore[arg-type]  # checked by msgspec


def start(loop: asyncio.AbstractEventLoop, source: RecordPodSource) -> Calls:
    worker = Calls()
    loop.run_until_complete(source.start(worker))
    return worker


def test_the_hosts_own_namespace_is_never_served(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_record(instance, record(netns=host_path(), netns_inode=os.stat(host_path()).st_ino))
    assert start(loop, source).told == []
    assert f"pod shop/cart: {host_path()} is the host's own namespace" in caplog.text


def test_a_record_without_its_namespace_is_said_once_and_tried_again(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str | Path] = []
    really_open = NetNs.open

    def counting(path: str | Path) -> NetNs:
        tries.append(path)
        return really_open(path)

    monkeypatch.setattr("nodenet.agents.ztunnel.pods.RETRY_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(NetNs, "open", counting)
    write_record(instance, record())
    worker = start(loop, source)
    until(lambda: len(tries) >= 3)
    assert worker.told == []
    assert caplog.text.count("/run/netns/nn-no-such: not there") == 1


def test_records_of_other_nodes_are_passed_over(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_record(instance, record(node="other"))
    assert start(loop, source).told == []
    assert not caplog.records


def test_a_directory_that_appears_later_is_found_step_by_step(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start(loop, source)
    instance.run.mkdir()
    loop.run_until_complete(asyncio.sleep(0))
    write_record(instance, record())
    until(lambda: "nn-no-such: not there" in caplog.text)


def test_a_directory_that_goes_and_comes_back_is_found_again(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instance.pods.mkdir(parents=True)
    start(loop, source)
    instance.pods.rmdir()
    instance.run.rmdir()
    loop.run_until_complete(asyncio.sleep(0))
    write_record(instance, record())
    until(lambda: "nn-no-such: not there" in caplog.text)


def test_a_broken_record_is_named(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instance.pods.mkdir(parents=True)
    (instance.pods / "7.json").write_text("{")
    (instance.pods / ".8.json.123").write_text("{")
    assert start(loop, source).told == []
    assert caplog.text.count("enrolment record cannot be read") == 1


def test_a_shortage_is_said_and_tried_again(
    loop: asyncio.AbstractEventLoop,
    source: RecordPodSource,
    instance: Instance,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(path: str | Path) -> NetNs:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("nodenet.agents.ztunnel.pods.RETRY_SECONDS", (0.01, 0.01))
    write_record(instance, record())
    with monkeypatch.context() as patch:
        patch.setattr(NetNs, "open", short)
        start(loop, source)
        assert "Too many open files" in caplog.text
    until(lambda: "nn-no-such: not there" in caplog.text)
