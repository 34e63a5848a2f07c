"""Enrolment records: written whole, read back, broken ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet import paths
from nodenet.capture.records import (
    PodRecord,
    RecordBroken,
    read_record,
    read_records,
    record_path,
    remove_record,
    write_record,
)
from nodenet.paths import Instance


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setattr(paths, "RUN", tmp_path)
    return Instance("t")


def _record(name: str, cookie: int) -> PodRecord:
    return PodRecord(
        name=name,
        netns=f"/run/netns/{cookie}",
        netns_inode=cookie,
        netns_cookie=cookie,
        pod_id=cookie,
        ips=("10.0.0.1", "fd00::1"),
        backend="ebpf",
        enrolled_at="2026-01-01T00:00:00.000000Z",
    )


def test_a_record_comes_back_as_it_was(instance: Instance) -> None:
    record = _record("shop/cart", 41)
    write_record(instance, record)
    assert read_record(record_path(instance, 41)) == record
    assert [p.name for p in instance.pods.iterdir()] == ["41.json"]


def test_records_are_listed_by_name(instance: Instance) -> None:
    for name, cookie in (("z", 1), ("a", 2), ("m", 3)):
        write_record(instance, _record(name, cookie))
    assert [r.name for r in read_records(instance)] == ["a", "m", "z"]


def test_no_directory_means_no_records(instance: Instance) -> None:
    assert list(read_records(instance)) == []


def test_a_half_written_file_of_a_killed_writer_is_not_read(instance: Instance) -> None:
    write_record(instance, _record("a", 1))
    (instance.pods / ".2.json.999").write_text('{"name"')
    assert [r.name for r in read_records(instance)] == ["a"]


def test_a_broken_record_names_its_file(instance: Instance) -> None:
    write_record(instance, _record("a", 1))
    path = record_path(instance, 1)
    path.write_text('{"name": 7}')
    with pytest.raises(RecordBroken, match=str(path)):
        read_record(path)


def test_removing_twice_is_quiet(instance: Instance) -> None:
    write_record(instance, _record("a", 1))
    remove_record(instance, 1)
    remove_record(instance, 1)
    assert read_record(record_path(instance, 1)) is None
