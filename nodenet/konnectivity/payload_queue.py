"""Payload of one connection that waits for its next hop, and the DATA messages made of it.

A lone message leaves as it came, without a copy. What has gathered while the hop was busy leaves as
one message, so a hop that cannot keep up gets fewer and larger ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from nodenet.konnectivity.packets import MAX_PAYLOAD_BYTES, data_prefix
from nodenet.rpc.call import Buffer, kept

Pieces = Sequence[Buffer]

#: What waits in pieces this small is joined up to so much: each piece costs 200 bytes of its own.
CRUMB_BYTES: Final = 512
JOINED_BYTES: Final = 4096
#: Of one sendmsg(2), below the kernel's 1024 (UIO_MAXIOV).
MOST_PIECES: Final = 256


class PayloadQueue:
    """Bytes in their order. Bounded by its owner, who looks at `size`."""

    __slots__ = ("_items", "size")

    def __init__(self) -> None:
        self._items: deque[tuple[Buffer, int, int]] = deque()
        self.size = 0
        """Bytes of payload."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def push(self, message: Buffer, start: int, end: int) -> None:
        """Queues ``message[start:end]``. ``start`` 0 means bare bytes, else it is a whole DATA."""
        items, size = self._items, end - start
        self.size += size
        if size <= CRUMB_BYTES and items:
            last, first, behind = items[-1]
            if behind - first <= JOINED_BYTES:
                whole = b"".join((memoryview(last)[first:behind], memoryview(message)[start:end]))
                items[-1] = (whole, 0, len(whole))
                return
        items.append((message, start, end))

    def clear(self) -> int:
        """Forgets everything; how many bytes it was."""
        dropped, self.size = self.size, 0
        self._items.clear()
        return dropped

    def pull(self, connect_id: int, gather: int, most: int) -> tuple[Pieces, int]:
        """The pieces of the next DATA message and its payload's size.

        What waits is joined up to ``gather`` bytes, without copying it; an item is divided only
        where it alone is more than ``most``, or than a message may carry. The queue is not empty
        and ``most`` at least 1.
        """
        items = self._items
        message, start, end = items[0]
        size = end - start
        largest = min(most, MAX_PAYLOAD_BYTES)
        if size > largest:
            size = min(gather, largest)
            part = memoryview(message)[start : start + size]
            # bare from now on: its prefix is not the rest's
            items[0] = (kept(message, start + size, end), 0, end - start - size)
            self.size -= size
            return (data_prefix(connect_id, size), part), size
        items.popleft()
        room = min(gather, largest) - size
        if not items or items[0][2] - items[0][1] > room:
            self.size -= size
            if start:
                return (message,), size
            return (data_prefix(connect_id, size), message), size
        parts: list[Buffer] = [b"", memoryview(message)[start:end] if start else message]
        while items:
            message, start, end = items[0]
            if end - start > room:
                break
            items.popleft()
            room -= end - start
            size += end - start
            parts.append(memoryview(message)[start:end] if start else message)
        self.size -= size
        parts[0] = data_prefix(connect_id, size)
        return parts, size
