"""Texts that the server maps to HTTP statuses; Go's words."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from nodenet.konnectivity import dial_errors

A = "10.0.0.1:80"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ECONNREFUSED, "dial tcp 10.0.0.1:80: connect: connection refused"),
        (errno.EHOSTUNREACH, "dial tcp 10.0.0.1:80: connect: no route to host"),
        (errno.ENETUNREACH, "dial tcp 10.0.0.1:80: connect: network is unreachable"),
        (errno.ECONNRESET, "dial tcp 10.0.0.1:80: connect: connection reset by peer"),
        (errno.ETIMEDOUT, "dial tcp 10.0.0.1:80: connect: connection timed out"),
        (errno.EADDRNOTAVAIL, "dial tcp 10.0.0.1:80: connect: cannot assign requested address"),
        (errno.EMFILE, "dial tcp 10.0.0.1:80: socket: too many open files"),
        (errno.ENFILE, "dial tcp 10.0.0.1:80: socket: too many open files in system"),
    ],
)
def test_connect(number: int, text: str) -> None:
    assert dial_errors.refused("tcp", A, OSError(number, os.strerror(number))) == text


def test_an_error_without_a_number() -> None:
    assert dial_errors.refused("tcp", A, OSError("no address")).endswith("connect: no address")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (socket.EAI_NONAME, "no such host"),
        (socket.EAI_NODATA, "no such host"),
        (socket.EAI_AGAIN, "server misbehaving"),
        (socket.EAI_MEMORY, "out of memory"),
    ],
)
def test_look_up(number: int, words: str) -> None:
    error = socket.gaierror(number, words)
    assert dial_errors.unresolved("tcp", "db", error) == f"dial tcp: lookup db: {words}"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("a", "missing port in address"),
        ("[::1]", "missing port in address"),
        ("::1:80", "too many colons in address"),
        (":80", "missing host in address"),
    ],
)
def test_addresses(address: str, words: str) -> None:
    text = f"dial tcp: address {address}: {words}"
    assert dial_errors.bad_address("tcp", address) == text


def test_what_makes_a_status_of_its_own() -> None:
    assert "timeout" in dial_errors.timed_out("tcp", A)
    assert "too many open files" in dial_errors.too_many_dials("tcp", A, 4096)
    assert dial_errors.bad_address("tcp", "a:x") == "dial tcp: address x: invalid port"
