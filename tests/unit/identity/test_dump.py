"""The shape of certificates in the configuration dump."""

from __future__ import annotations

import base64

import msgspec

from nodenet.identity.dump import dump_identities
from nodenet.identity.entry import EntrySnapshot, State
from nodenet.identity.spiffe import Identity
from tests.unit.identity.authority import Authority

CART = Identity("cluster.local", "shop", "cart")


def _entry(state: State, **fields: object) -> EntrySnapshot:
    values: dict[str, object] = {
        "identity": CART,
        "state": state,
        "certificate": None,
        "error": None,
        "attempts": 0,
        "next_request": None,
        "waiters": 0,
    }
    return EntrySnapshot(**(values | fields))  # type: ignore[arg-type]  # a table of fields


def test_an_available_identity_shows_its_chain_and_no_key() -> None:
    authority = Authority.with_intermediate()
    certificate = authority.certificate(CART, ttl=3600, now=1_800_000_000.0)
    assert authority.intermediate is not None
    text = msgspec.json.encode(dump_identities([_entry(State.AVAILABLE, certificate=certificate)]))
    (shown,) = msgspec.json.decode(text)
    assert list(shown) == ["identity", "state", "certChain", "rootCerts"]
    assert (shown["identity"], shown["state"]) == (str(CART), "Available")
    leaf, between = shown["certChain"]
    assert leaf == {
        "pem": base64.b64encode(certificate.leaf.pem.encode()).decode(),
        "serialNumber": str(certificate.leaf.library().serial_number),
        "validFrom": "2027-01-15T07:59:00Z",
        "expirationTime": "2027-01-15T09:00:00Z",
    }
    assert base64.b64decode(between["pem"]).decode() == authority.intermediate.certificate.pem
    (root,) = shown["rootCerts"]
    assert root["serialNumber"] == str(authority.root.certificate.serial)
    secret = certificate.key.pem().decode().splitlines()[1]
    assert secret not in text.decode() and "PRIVATE" not in base64.b64decode(leaf["pem"]).decode()


def test_an_identity_without_certificate_shows_why() -> None:
    entries = [_entry(State.INITIALIZING), _entry(State.UNAVAILABLE, error="out of paper")]
    shown = dump_identities(entries)
    assert [entry.state for entry in shown] == ["Initializing", "Unavailable: out of paper"]
    assert shown[0].cert_chain == shown[0].root_certs == []
