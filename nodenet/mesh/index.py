"""One key, some keys of resources: an index that costs little where there is only one.

Nearly every address belongs to one workload and nearly every hostname to one service, so a list a
key would be most of the memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Index(Generic[K]):
    """Maps a key to resource keys, in the order they were added."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[K, str | tuple[str, ...]] = {}

    def get(self, key: K) -> tuple[str, ...]:
        """All of them, oldest first; empty when there is none."""
        found = self._entries.get(key)
        if found is None:
            return ()
        return (found,) if isinstance(found, str) else found

    def last(self, key: K) -> str | None:
        """The last of `get`, without making a tuple."""
        found = self._entries.get(key)
        return found[-1] if isinstance(found, tuple) else found

    def put(self, key: K, resources: tuple[str, ...]) -> None:
        """Replaces what the key maps to; an empty tuple removes it."""
        if not resources:
            self._entries.pop(key, None)
        else:
            self._entries[key] = resources if len(resources) > 1 else resources[0]

    def add(self, key: K, resource: str) -> None:
        """Appends, unless it is there."""
        present = self.get(key)
        if resource not in present:
            self.put(key, (*present, resource))

    def discard(self, key: K, resource: str) -> None:
        """Removes it, if it is there."""
        if key in self._entries:
            self.put(key, tuple(each for each in self.get(key) if each != resource))

    def __len__(self) -> int:
        return len(self._entries)


class NetworkIndex:
    """An index by address within each network; addresses are packed, 4 or 16 bytes."""

    __slots__ = ("_networks",)

    def __init__(self) -> None:
        self._networks: dict[str, Index[bytes]] = {}

    def within(self, network: str) -> Index[bytes]:
        """The index of a network to write to; made when there is none."""
        index = self._networks.get(network)
        if index is None:
            index = self._networks[network] = Index()
        return index

    def get(self, network: str, address: bytes) -> tuple[str, ...]:
        """What has the address, oldest first."""
        index = self._networks.get(network)
        return index.get(address) if index is not None else ()

    def last(self, network: str, address: bytes) -> str | None:
        """The last of `get`."""
        index = self._networks.get(network)
        return index.last(address) if index is not None else None

    def discard(self, network: str, address: bytes, resource: str) -> None:
        """Removes it; a network without addresses is forgotten."""
        index = self._networks.get(network)
        if index is not None:
            index.discard(address, resource)
            if not len(index):
                del self._networks[network]
