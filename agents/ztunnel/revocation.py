"""Peers whose certificates a CRL lists: refused when they come, cut off when they are there."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from typing import Protocol

from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND
from nodenet.agents.ztunnel.transport import Transport
from nodenet.errors import NodenetError
from nodenet.identity.crl_file import CrlFile
from nodenet.identity.errors import CertificateRevoked
from nodenet.identity.peer import peer_chain
from nodenet.identity.store import CertificateStore
from nodenet.identity.x509 import Certificate


class LivePeers(Protocol):
    """Has connections to other proxies."""

    def transports(self) -> Iterable[tuple[str, Transport]]:
        """Those that are secured, each with its direction."""


class Revocation:
    """The check of peers against one file of lists."""

    def __init__(self, lists: CrlFile) -> None:
        self._lists = lists
        self._live: set[LivePeers] = set()
        self.rejections = {OUTBOUND: 0, INBOUND: 0}
        """Handshakes refused and connections cut, by direction."""
        lists.subscribe(self._changed)

    def check(self, connection: ssl.SSLObject, direction: str) -> None:
        """CertificateRevoked when the peer must not be talked to."""
        try:
            self._lists.check(peer_chain(connection))
        except CertificateRevoked:
            self.rejections[direction] += 1
            raise

    def watch(self, live: LivePeers) -> None:
        """Its connections are looked at when the lists change."""
        self._live.add(live)

    def forget(self, live: LivePeers) -> None:
        """It has none any more."""
        self._live.discard(live)

    def _changed(self) -> None:
        for live in list(self._live):
            for direction, transport in list(live.transports()):
                try:
                    self.check(transport.tls, direction)
                except NodenetError as error:
                    transport.abort(error)


def issuers_of(store: CertificateStore) -> Iterator[Certificate]:
    """The roots and intermediates of the certificates there are now."""
    for entry in store.snapshot():
        if entry.certificate is not None:
            yield from entry.certificate.roots
            yield from entry.certificate.intermediates
