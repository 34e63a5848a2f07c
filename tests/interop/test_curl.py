"""`nodenet konnectivity curl` through a real server and agent, as a user runs it."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from nodenet.konnectivity.client import Mode
from tests.interop.certificates import Certificates
from tests.interop.peers import ServerProcess, World
from tests.interop.remotes import Remote

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def web(sock: socket.socket) -> None:
    """Answers with the request, as text; 404 for /nope, and the body in chunks."""
    request = b""
    while b"\r\n\r\n" not in request:
        part = sock.recv(65_536)
        if not part:
            return
        request += part
    head, _, body = request.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += sock.recv(65_536)
    status = b"404 Not Found" if b" /nope " in head else b"200 OK"
    answer = head.split(b"\r\n")[0] + b"|" + body
    sock.sendall(b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    sock.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer))


def secure(certificates: Certificates) -> Callable[[socket.socket], None]:
    """The same over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.cert, certificates.server.key)

    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as wrapped:
            web(wrapped)

    return serve


def plain(sock: socket.socket) -> None:
    """What a web server says to the first bytes of TLS."""
    sock.recv(65_536)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture(params=["grpc", "http-connect"])
def server(request: pytest.FixtureRequest, world: World) -> Iterator[ServerProcess]:
    mode: Mode = request.param
    yield world.connected("ours", "ours", mode=mode)[0]


@pytest.fixture
def curl(server: ServerProcess) -> Run:
    """Runs the command against the server."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nodenet.cli.main", "konnectivity", "curl"]
        where = ["--server", str(server.target), "--mode", server.mode]
        return subprocess.run(
            [*command, *where, *words], capture_output=True, text=True, timeout=60
        )

    return run


def test_a_body_is_printed(curl: Run) -> None:
    with Remote(web) as remote:
        done = curl(f"http://{remote.address}/a?b=c")
        assert (done.returncode, done.stdout) == (0, "GET /a?b=c HTTP/1.1|"), done.stderr
        done = curl(remote.address, "-i", "-X", "PUT", "-d", "data", "-H", "X-Test: 1")
        assert done.stdout.splitlines()[0] == "HTTP/1.1 200 OK"
        assert done.stdout.endswith("\n\nPUT / HTTP/1.1|data")


def test_json_says_how_long_it_took(curl: Run) -> None:
    with Remote(web) as remote:
        done = curl(f"http://{remote.address}/", "-j")
    found = json.loads(done.stdout)
    assert (found["ok"], found["status"], found["body"]) == (True, 200, "GET / HTTP/1.1|")
    assert 0 < found["dial_ms"] <= found["first_byte_ms"] <= found["total_ms"]


def test_a_status_fails_only_when_asked_to(curl: Run) -> None:
    with Remote(web) as remote:
        url = f"http://{remote.address}/nope"
        assert curl(url).returncode == 0
        done = curl(url, "--fail")
        assert done.returncode == 1
        assert done.stderr == f"nodenet: {url}: HTTP 404 Not Found\n"


def test_https(curl: Run, certs: Certificates) -> None:
    with Remote(secure(certs)) as remote:
        url = f"https://{remote.address}/"
        done = curl(url, "--remote-ca", str(certs.ca))
        assert (done.returncode, done.stdout) == (0, "GET / HTTP/1.1|"), done.stderr
        assert curl(url, "--insecure").returncode == 0
        done = curl(url)
        assert done.returncode == 1
        assert done.stderr.startswith("nodenet: TLS with 127.0.0.1: its certificate: ")
        assert done.stderr.endswith("; give its CA, --remote-ca FILE, or take any, -k\n")
    with Remote(plain) as remote:
        done = curl(f"https://{remote.address}/x", "--insecure")
        assert done.stderr == (
            "nodenet: TLS with 127.0.0.1: what it speaks is no TLS; "
            f"is it http://{remote.address}/x?\n"
        )


def test_what_cannot_be_reached(curl: Run, server: ServerProcess) -> None:
    done = curl("http://127.0.0.1:1/", "-j")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["kind"] == "DialFailed" and found["exit"] == 1
    assert "dial tcp 127.0.0.1:1: connect: connection refused" in found["error"]
    with Remote(lambda sock: sock.sendall(b"nonsense\r\n\r\n")) as rude:
        done = curl(f"http://{rude.address}/")
        assert done.returncode == 1 and "not an answer in HTTP" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ftp://a/"], "not a URL: ftp://a/; e.g. https://10.0.0.5:10250/healthz"),
        (["http://a/", "--cert", "c"], "--cert and --key need each other; give both"),
        (["http://a/", "-H", "x"], "--header 'x': not NAME: VALUE; -H 'Accept: text/plain'"),
        (
            ["http://a/", "--timeout", "0"],
            "0 is not a length of time of 0.001s or more in --timeout; write e.g. 10s",
        ),
        (["http://a/", "-d", "@/nope"], "--data @/nope: no such file or directory"),
    ],
)
def test_usage(words: list[str], text: str) -> None:
    command = [sys.executable, "-m", "nodenet.cli.main", "konnectivity", "curl", *words]
    done = subprocess.run(
        [*command, "--server", "unix:/nope"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, f"nodenet: {text}\n")
