"""Authorization policies: who may connect to a workload (istio.security.Authorization).

A policy is an OR of rules, a rule an AND of clauses, a clause an OR of matches, a match an AND of
fields (`nodenet.mesh.rbac` says what each level does when it is empty). The shapes here are those
of the wire, addresses as bytes, so that msgspec encodes them as they are. They are read from JSON
or YAML by `nodenet.mesh.policy_json`, from protobuf messages by `nodenet.mesh.policy_wire`.

**Difference to ztunnel.** ztunnel drops an address that it cannot parse and a StringMatch without a
member, and what is left of the list may be empty: the field then matches everything, so an ALLOW
admits everybody. Here such a policy is refused as a whole with `PolicyRefused`, which names the
policy and the field. The source says what happens then: a control plane gets a NACK and the version
of the policy known before stays in force, a file is not loaded.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import Final

import msgspec

from nodenet.endpoint import IPAddress
from nodenet.errors import NodenetError

#: Where in a policy something is: keys and indexes from the policy's own object downwards.
Path = tuple[str | int, ...]

PORT_MAX: Final = 65535
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
_MAPPED_BITS: Final = 96


class PolicyRefused(NodenetError):
    """A policy that cannot be understood, and so is not used at all.

    ``policy`` is ``ns/name``, None when even that could not be read. ``path`` is where in the
    policy's object the fault is, ``reason`` what is wrong there, without the place.
    """

    def __init__(self, policy: str | None, path: Path, reason: str) -> None:
        named = "a policy without a name" if policy is None else f"policy {policy}"
        where = format_path(path)
        super().__init__(
            f"{named} refused: {where + ': ' if where else ''}{reason}",
            hint="nothing of it is applied",
        )
        self.policy = policy
        self.path = path
        self.reason = reason


class InvalidPart(ValueError):
    """A part of a policy that means nothing. ``path`` is known to those who read whole objects."""

    def __init__(self, reason: str, path: Path = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Scope(Enum):
    """Which workloads a policy is for; the values are the names of the JSON form."""

    GLOBAL = "Global"
    NAMESPACE = "Namespace"
    WORKLOAD_SELECTOR = "WorkloadSelector"


class Action(Enum):
    """What a match means; the values are the names of the JSON form."""

    ALLOW = "Allow"
    DENY = "Deny"


class StringKind(Enum):
    """How a `StringMatch` compares; the values are the names of the JSON form."""

    EXACT = "Exact"
    PREFIX = "Prefix"
    SUFFIX = "Suffix"
    PRESENCE = "Presence"


class StringMatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A test of a text, case-sensitive. PRESENCE holds for every non-empty text."""

    kind: StringKind
    value: str = ""

    def matches(self, text: str) -> bool:
        """Whether ``text`` passes."""
        match self.kind:
            case StringKind.EXACT:
                return text == self.value
            case StringKind.PREFIX:
                return text.startswith(self.value)
            case StringKind.SUFFIX:
                return text.endswith(self.value)
            case StringKind.PRESENCE:
                return text != ""

    def __str__(self) -> str:
        """As Istio's users write it: ``a``, ``a*``, ``*a``, ``*``."""
        match self.kind:
            case StringKind.EXACT:
                return self.value
            case StringKind.PREFIX:
                return f"{self.value}*"
            case StringKind.SUFFIX:
                return f"*{self.value}"
            case StringKind.PRESENCE:
                return "*"


class Cidr(msgspec.Struct, frozen=True):
    """A range of addresses: 4 or 16 bytes in network order, and the length of the prefix in bits.

    Bits after the prefix are kept as they came and decide nothing.
    """

    address: bytes
    length: int

    @classmethod
    def of(cls, address: bytes, length: int) -> Cidr:
        """A checked range. A v4-mapped one becomes IPv4, as every address is that is compared.

        InvalidPart when the address has neither 4 nor 16 bytes or the prefix is too long.
        """
        if len(address) not in (4, 16):
            raise InvalidPart(f"an address of {len(address)} bytes; 4 or 16 are possible")
        if not 0 <= length <= len(address) * 8:
            raise InvalidPart(f"prefix length {length} is not within 0-{len(address) * 8}")
        if len(address) == 16 and address.startswith(_MAPPED) and length >= _MAPPED_BITS:
            return cls(address[12:], length - _MAPPED_BITS)
        return cls(address, length)

    @classmethod
    def parse(cls, text: str) -> Cidr:
        """From ``10.0.0.0/8``, ``fd00::/64`` or an address alone. InvalidPart for anything else."""
        host, slash, prefix = text.partition("/")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise InvalidPart(f"{text!r} is neither an address nor a CIDR") from None
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise InvalidPart(f"{text!r} has a zone, which means something on one host only")
        if not slash:
            return cls.of(address.packed, address.max_prefixlen)
        if not (prefix.isascii() and prefix.isdigit() and len(prefix) <= 3):
            raise InvalidPart(f"{text!r} has no prefix length after the slash")
        return cls.of(address.packed, int(prefix))

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """As an `ipaddress` network, without the bits after the prefix."""
        return ipaddress.ip_network((self.address, self.length), strict=False)

    def contains(self, address: IPAddress) -> bool:
        """Whether ``address`` is inside; never for the other family."""
        return len(self.address) * 8 == address.max_prefixlen and address in self.network

    def __str__(self) -> str:
        return f"{ipaddress.ip_address(self.address)}/{self.length}"


class ServiceAccountMatch(msgspec.Struct, frozen=True):
    """A service account by namespace and name, whatever the trust domain."""

    namespace: str
    service_account: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service_account}"


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All fields must hold: one of a positive list (an empty one always), none of a ``not_`` list.

    A match without any field matches nothing.
    """

    namespaces: tuple[StringMatch, ...] = ()
    not_namespaces: tuple[StringMatch, ...] = ()
    service_accounts: tuple[ServiceAccountMatch, ...] = ()
    not_service_accounts: tuple[ServiceAccountMatch, ...] = ()
    principals: tuple[StringMatch, ...] = ()
    """Compared with the peer's SPIFFE id without ``spiffe://``."""
    not_principals: tuple[StringMatch, ...] = ()
    source_ips: tuple[Cidr, ...] = ()
    not_source_ips: tuple[Cidr, ...] = ()
    destination_ips: tuple[Cidr, ...] = ()
    not_destination_ips: tuple[Cidr, ...] = ()
    destination_ports: tuple[int, ...] = ()
    not_destination_ports: tuple[int, ...] = ()


class Clause(msgspec.Struct, frozen=True, omit_defaults=True):
    """An OR of matches; without any it always holds."""

    matches: tuple[Match, ...] = ()


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """An AND of clauses; without any it always holds."""

    clauses: tuple[Clause, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One authorization policy, an OR of rules; without any it never matches.

    An ALLOW without rules therefore denies everything, a DENY without rules nothing.
    """

    name: str
    namespace: str
    scope: Scope
    action: Action
    rules: tuple[Rule, ...] = ()
    dry_run: bool = False
    """Its decision is logged, not enforced."""

    @property
    def key(self) -> str:
        """``ns/name``, what workloads and removals call it."""
        return f"{self.namespace}/{self.name}"


def check_naming(name: str, namespace: str, scope: Scope) -> None:
    """InvalidPart when a policy so named could be taken for another one.

    Policies of a namespace are found by it, and the empty one stands for the whole mesh: a policy
    of scope NAMESPACE without a namespace would silently be one for everybody.
    """
    if not name:
        raise InvalidPart("is empty", ("name",))
    if not namespace and scope is Scope.NAMESPACE:
        raise InvalidPart("is empty, but the scope is one namespace", ("namespace",))


def checked_port(number: int) -> int:
    """A port as policies may have it, 0 included (it equals no port). InvalidPart otherwise."""
    if not 0 <= number <= PORT_MAX:
        raise InvalidPart(f"port {number} is not within 0-{PORT_MAX}")
    return number


def format_path(path: Path) -> str:
    """``rules[0][1].sourceIps[2]``; empty for the object itself."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
