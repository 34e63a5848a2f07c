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

#: A message of so many bytes is worth its cost: it is not copied into a larger one.
ENOUGH_BYTES: Final = 32 << 10

Pieces = Sequence[Buffer]


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
        self._items.append((message, start, end))
        self.size += end - start

    def clear(self) -> int:
        """Forgets everything; how many bytes it was."""
        dropped, self.size = self.size, 0
        self._items.clear()
        return dropped

    def pull(self, connect_id: int, gather: int, most: int) -> tuple[Pieces, int]:
        """The pieces of the next DATA message and its payload's size.

        Small ones are joined up to ``gather`` bytes; no payload is larger than ``most``. The queue
        is not empty and ``most`` at least 1.
        """
        items = self._items
        message, start, end = items[0]
        size = end - start
        if size <= most and (size >= ENOUGH_BYTES or len(items) == 1) and size <= MAX_PAYLOAD_BYTES:
            items.popleft()
            self.size -= size
            if start:
                return (message,), size
            return (data_prefix(connect_id, size), message), size
        room = left = min(gather, most)
        parts: list[Buffer] = [b""]
        while items and left:
            message, start, end = items[0]
            size = end - start
            if size > left:
                parts.append(memoryview(message)[start : start + left])
                # bare from now on: its prefix is not the rest's
                items[0] = (kept(message, start + left, end), 0, size - left)
                left = 0
                break
            items.popleft()
            left -= size
            parts.append(message if not start else memoryview(message)[start:end])
        taken = room - left
        self.size -= taken
        parts[0] = data_prefix(connect_id, taken)
        return parts, taken
