"""Every packet that goes from node to node, written to a file.

One AF_PACKET socket in the router's namespace hears what its links receive: each packet once, on
the link of the node it comes from. A packet that was not heard would make a proof worthless, so the
kernel's count of those is part of the result.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from nodenet.errors import NodenetError
from nodenet.kernel.netns import NetNs
from nodenet.lab import pcap

#: linux/if_packet.h, linux/if_ether.h, asm-generic/socket.h.
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_OUTGOING: Final = 4
_ETH_P_ALL: Final = 0x0003
_SO_RCVBUFFORCE: Final = 33
_STATISTICS: Final = struct.Struct("=II")
#: What may wait while Python does something else: all of a demo of the usual size.
_BUFFER_BYTES: Final = 64 << 20
#: The file is in memory (/run); a demo of 100 requests between four pods has a fifth of this.
MAX_FILE_BYTES: Final = 256 << 20


class CaptureFailed(NodenetError):
    """Packets between the nodes could not be heard or written."""


class Sniffer:
    """Captures for the length of a block. ``lost`` is known behind it."""

    def __init__(self, namespace: str, path: Path) -> None:
        """``namespace`` is the router's, by name; ``path`` the file, replaced if it is there."""
        self._namespace = namespace
        self._path = path
        self.lost = 0
        """Packets that are not in the file: the kernel had no room, or the file has none."""
        self._error: OSError | None = None
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="sniffer", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._socket = _packet_socket(self._namespace)
        except BaseException:
            os.close(self._stop)
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        dropped = _STATISTICS.unpack(
            self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        )[1]
        self.lost += dropped
        self._socket.close()
        os.close(self._stop)
        if self._error is not None and kind is None:
            reason = self._error.strerror or self._error
            raise CaptureFailed(f"capture between the nodes: {self._path}: {reason}")

    def _run(self) -> None:
        try:
            with self._path.open("wb") as file:
                file.write(pcap.file_header())
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                poll.register(self._stop, select.POLLIN)
                while self._stop not in {fd for fd, _ in poll.poll()}:
                    self._take(file)
                self._take(file)  # whatever had come before the end
        except OSError as error:
            self._error = error

    def _take(self, file: BinaryIO) -> None:
        """Writes what is waiting."""
        while True:
            try:
                frame, (_, _, kind, *_) = self._socket.recvfrom(pcap.SNAP_BYTES)
            except BlockingIOError:
                return
            if kind == _PACKET_OUTGOING:
                continue  # it has been heard on the link it came from
            if file.tell() + len(frame) > MAX_FILE_BYTES:
                self.lost += 1
            else:
                file.write(pcap.packet_header(time.time_ns(), len(frame)))
                file.write(frame)


def _packet_socket(namespace: str) -> socket.socket:
    with NetNs.named(namespace) as ns:
        try:
            sock = ns.open_socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        except OSError as error:
            raise CaptureFailed(
                f"capture between the nodes: packet socket in {namespace}: {error.strerror}"
            ) from error
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    return sock
