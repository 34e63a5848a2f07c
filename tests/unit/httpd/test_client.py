"""What the blocking client says when there is no answer."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from nodenet.httpd.client import NoAnswer, NobodyThere, TcpAddress, fetch


def test_nobody_at_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with pytest.raises(NobodyThere) as caught:
        fetch(path, "/")
    assert caught.value.line() == f"connect {path}: no such file or directory"
    assert caught.value.exit_code == 4


def test_nobody_at_a_port() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(NobodyThere, match=rf"^connect 127\.0\.0\.1:{port}: connection refused$"):
        fetch(TcpAddress("127.0.0.1", port), "/")


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n"])
def test_somebody_who_speaks_something_else(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoAnswer, match=r"^127\.0\.0\.1:[0-9]+: no answer in HTTP came$"):
            fetch(TcpAddress("127.0.0.1", server.getsockname()[1]), "/")
        thread.join()


def test_somebody_who_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = TcpAddress("127.0.0.1", server.getsockname()[1])
        with pytest.raises(NoAnswer, match=r"no answer within 0\.05 s$"):
            fetch(where, "/", answer_seconds=0.05)
