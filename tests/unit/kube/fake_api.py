"""A Kubernetes API of leases and token reviews, in memory, over real HTTP (and TLS)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
import msgspec
import yaml

from nodenet.kube.access import Access

Json = dict[str, Any]


@dataclass
class FakeApi:
    """What it holds, and what it was asked. ``faults`` are statuses for the next requests."""

    objects: dict[str, Json] = field(default_factory=dict)
    """By path."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    review: Callable[[Json], Json] = lambda spec: {"authenticated": False}
    connections: int = 0
    close_after_answer: bool = False
    silent: bool = False
    version: int = 0
    access: Access = Access(host="127.0.0.1", port=0, secure=False)
    deletions: list[Json] = field(default_factory=list)

    def kubeconfig(self, folder: Path) -> Path:
        """A file by which a client finds it, as user ``u`` with the token ``server``."""
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                    "clusters": [{"name": "k", "cluster": {"server": f"http://{self.access}"}}],
                    "users": [{"name": "u", "user": {"token": "server"}}],
                }
            )
        )
        return path

    def answer(self, method: str, target: str, body: Json) -> tuple[int, Json]:
        """What the API says."""
        url = urlsplit(target)
        self.asked.append((method, url.path))
        if self.faults:
            status = self.faults.pop(0)
            return status, _status(status, "Injected")
        if url.path.endswith("/tokenreviews"):
            return 201, {**body, "status": self.review(body["spec"])}
        if method == "GET" and url.path.endswith("/leases"):
            return 200, self._list(url.path, parse_qs(url.query).get("labelSelector", [""])[0])
        if method == "POST":
            path = f"{url.path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, _status(409, "AlreadyExists")
            return 201, self._store(path, body)
        found = self.objects.get(url.path)
        if found is None:
            return 404, _status(404, "NotFound")
        if method == "DELETE":
            wanted = body.get("preconditions", {}).get("resourceVersion")
            if wanted not in (None, found["metadata"]["resourceVersion"]):
                return 409, _status(409, "Conflict")
            self.deletions.append(self.objects.pop(url.path))
            return 200, _status(200, "")
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                return 409, _status(409, "Conflict")
            return 200, self._store(url.path, body)
        return 200, found

    def _store(self, path: str, body: Json) -> Json:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = body
        return body

    def _list(self, path: str, selector: str) -> Json:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        items = [
            found
            for name, found in self.objects.items()
            if name.startswith(path + "/")
            and wanted.items() <= found["metadata"].get("labels", {}).items()
        ]
        return {"kind": "LeaseList", "items": items}


def _status(code: int, reason: str) -> Json:
    return {"kind": "Status", "code": code, "reason": reason, "message": f"{reason} here"}


@contextlib.asynccontextmanager
async def fake_api(
    context: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[FakeApi]:
    """Serves until the block ends."""
    api = FakeApi(**settings)
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        api.connections += 1
        open_ones.add(writer)
        try:
            await _serve(api, reader, writer)
        except (OSError, h11.RemoteProtocolError):
            pass
        finally:
            open_ones.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    api.access = Access(host="127.0.0.1", port=port, secure=context is not None)
    try:
        yield api
    finally:
        server.close()
        for writer in list(open_ones):
            writer.transport.abort()
        await asyncio.sleep(0.01)


async def _serve(api: FakeApi, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    http = h11.Connection(h11.SERVER)
    while True:
        request, raw = await _request(http, reader)
        if request is None:
            return
        api.headers.append({n.decode(): v.decode() for n, v in request.headers})
        if api.silent:
            await asyncio.sleep(3600)
        body = msgspec.json.decode(raw) if raw else {}
        status, found = api.answer(request.method.decode(), request.target.decode(), body)
        out = msgspec.json.encode(found)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(out)))]
        writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
        writer.write(http.send(h11.Data(data=out)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        if api.close_after_answer:
            return
        http.start_next_cycle()


async def _request(
    http: h11.Connection, reader: asyncio.StreamReader
) -> tuple[h11.Request | None, bytes]:
    request, raw = None, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            got = await reader.read(65_536)
            if not got and request is None:
                return None, b""
            http.receive_data(got)
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            raw += event.data
        elif isinstance(event, h11.EndOfMessage):
            return request, raw
        else:
            return None, b""
