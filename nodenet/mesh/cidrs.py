"""Services by range of addresses: every range of a network that contains an address."""

from __future__ import annotations

from nodenet.mesh.index import Index
from nodenet.mesh.model import CidrAddress


class CidrIndex:
    """Ranges by network, family and prefix length.

    A look-up tries each length that is in use, longest first, so it costs a few dictionary
    look-ups whatever the number of ranges.
    """

    __slots__ = ("_networks",)

    def __init__(self) -> None:
        #: (network, bits of the family) to prefix length to leading bits
        self._networks: dict[tuple[str, int], dict[int, Index[int]]] = {}

    def add(self, cidr: CidrAddress, key: str) -> None:
        """Adds a service's range."""
        bits = len(cidr.address) * 8
        lengths = self._networks.setdefault((cidr.network, bits), {})
        if cidr.length not in lengths:
            lengths[cidr.length] = Index()
            # longest first, once and not at every look-up
            self._networks[cidr.network, bits] = dict(sorted(lengths.items(), reverse=True))
        index = self._networks[cidr.network, bits][cidr.length]
        index.add(_head(cidr.address, cidr.length), key)

    def discard(self, cidr: CidrAddress, key: str) -> None:
        """Removes a service's range, if it is there."""
        family = (cidr.network, len(cidr.address) * 8)
        lengths = self._networks.get(family, {})
        index = lengths.get(cidr.length)
        if index is None:
            return
        index.discard(_head(cidr.address, cidr.length), key)
        if not len(index):
            del lengths[cidr.length]
        if not lengths:
            del self._networks[family]

    def containing(self, network: str, address: bytes) -> list[tuple[int, str]]:
        """Prefix length and service of every range around the address (packed), longest first."""
        lengths = self._networks.get((network, len(address) * 8))
        if lengths is None:
            return []
        bits = len(address) * 8
        number = int.from_bytes(address, "big")
        return [
            (length, key)
            for length, index in lengths.items()
            for key in index.get(number >> (bits - length))
        ]


def _head(address: bytes, length: int) -> int:
    return int.from_bytes(address, "big") >> (len(address) * 8 - length)
