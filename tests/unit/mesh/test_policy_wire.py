"""Policies from protobuf messages, with classes made from the published field numbers."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nodenet.mesh.policy import (
    Action,
    Cidr,
    Clause,
    Match,
    Policy,
    PolicyRefused,
    Rule,
    Scope,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
)
from nodenet.mesh.policy_wire import policy_from_message

_F = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "uint32": _F.TYPE_UINT32,
    "bool": _F.TYPE_BOOL,
    "Scope": _F.TYPE_ENUM,
    "Action": _F.TYPE_ENUM,
}
#: message: field, number, type; a trailing + is repeated, ? a member of the oneof.
_MESSAGES = {
    "Authorization": "name 1 string, namespace 2 string, scope 3 Scope, action 4 Action, "
    "rules 5 Rule+, dry_run 6 bool, extensions 7 Extension+",
    "Rule": "clauses 1 Clause+",
    "Clause": "matches 2 Match+",
    "Match": "namespaces 1 StringMatch+, not_namespaces 2 StringMatch+, principals 3 StringMatch+, "
    "not_principals 4 StringMatch+, source_ips 5 Address+, not_source_ips 6 Address+, "
    "destination_ips 7 Address+, not_destination_ips 8 Address+, destination_ports 9 uint32+, "
    "not_destination_ports 10 uint32+, service_accounts 11 ServiceAccountMatch+, "
    "not_service_accounts 12 ServiceAccountMatch+, extensions 13 Extension+",
    "Address": "address 1 bytes, length 2 uint32",
    "ServiceAccountMatch": "namespace 1 string, serviceAccount 2 string",
    "StringMatch": "exact 1 string?, prefix 2 string?, suffix 3 string?, presence 4 Empty?",
    "Extension": "name 1 string",
    "Empty": "",
}
_ENUMS = {
    "Scope": ("GLOBAL", "NAMESPACE", "WORKLOAD_SELECTOR"),
    "Action": ("ALLOW", "DENY"),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if "?" in fields:
            message.oneof_decl.add(name="match_type")
        for field in filter(None, fields.split(", ")):
            word, digits, kind = field.split()
            bare = kind.rstrip("+?")
            added = message.field.add(name=word, number=int(digits))
            added.label = _F.LABEL_REPEATED if kind.endswith("+") else _F.LABEL_OPTIONAL
            added.type = _TYPES.get(bare, _F.TYPE_MESSAGE)
            if added.type in (_F.TYPE_MESSAGE, _F.TYPE_ENUM):
                added.type_name = f".t.{bare}"
            if kind.endswith("?"):
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in _MESSAGES
    }


M = _classes()


def authorization(**match: Any) -> Any:
    rules = [M["Rule"](clauses=[M["Clause"](matches=[M["Match"](**match)])])] if match else []
    return M["Authorization"](name="p", namespace="ns", scope=1, action=1, rules=rules)


def test_smallest() -> None:
    message = M["Authorization"](name="p", namespace="ns")
    assert policy_from_message(message) == Policy(
        name="p", namespace="ns", scope=Scope.GLOBAL, action=Action.ALLOW
    )


def test_every_field() -> None:
    text, cidr = M["StringMatch"], M["Address"]
    account = M["ServiceAccountMatch"]
    message = authorization(
        namespaces=[text(exact="a")],
        not_namespaces=[text(prefix="b")],
        principals=[text(suffix="c")],
        not_principals=[text(presence=M["Empty"]())],
        source_ips=[cidr(address=b"\x0a\0\0\0", length=8)],
        not_source_ips=[cidr(address=b"\xfd" + bytes(15), length=8)],
        destination_ips=[cidr(address=bytes(10) + b"\xff\xff\x0a\0\0\1", length=128)],
        not_destination_ips=[cidr(address=bytes(4), length=0)],
        destination_ports=[80],
        not_destination_ports=[0],
        service_accounts=[account(namespace="a", serviceAccount="b")],
        not_service_accounts=[account(namespace="c", serviceAccount="d")],
    )
    message.dry_run = True
    # what goes over the wire comes back, whatever the member order of the message was
    received = M["Authorization"].FromString(message.SerializeToString())
    match = Match(
        namespaces=(StringMatch(StringKind.EXACT, "a"),),
        not_namespaces=(StringMatch(StringKind.PREFIX, "b"),),
        principals=(StringMatch(StringKind.SUFFIX, "c"),),
        not_principals=(StringMatch(StringKind.PRESENCE),),
        source_ips=(Cidr.parse("10.0.0.0/8"),),
        not_source_ips=(Cidr.parse("fd00::/8"),),
        destination_ips=(Cidr.parse("10.0.0.1/32"),),
        not_destination_ips=(Cidr.parse("0.0.0.0/0"),),
        destination_ports=(80,),
        not_destination_ports=(0,),
        service_accounts=(ServiceAccountMatch("a", "b"),),
        not_service_accounts=(ServiceAccountMatch("c", "d"),),
    )
    assert policy_from_message(received) == Policy(
        name="p",
        namespace="ns",
        scope=Scope.NAMESPACE,
        action=Action.DENY,
        rules=(Rule((Clause((match,)),)),),
        dry_run=True,
    )


def test_an_empty_text_is_a_member() -> None:
    policy = policy_from_message(authorization(namespaces=[M["StringMatch"](exact="")]))
    [rule] = policy.rules
    assert rule.clauses[0].matches[0].namespaces == (StringMatch(StringKind.EXACT, ""),)


def test_extensions_of_the_policy_are_for_others() -> None:
    message = authorization()
    message.extensions.add(name="x")
    assert policy_from_message(message).key == "ns/p"


PLACE = "rules[0].clauses[0].matches[0]"


@pytest.mark.parametrize(
    ("match", "place"),
    [
        ({"source_ips": [M["Address"](address=b"12345", length=8)]}, "source_ips[0]"),
        ({"source_ips": [M["Address"](address=b"", length=0)]}, "source_ips[0]"),
        ({"not_destination_ips": [M["Address"](address=b"1234", length=33)]}, "_ips[0]"),
        ({"principals": [M["StringMatch"](exact="a"), M["StringMatch"]()]}, "principals[1]"),
        ({"not_namespaces": [M["StringMatch"]()]}, "not_namespaces[0]"),
        ({"destination_ports": [1, 70000]}, "destination_ports[1]"),
        ({"extensions": [M["Extension"](name="x")]}, "extensions"),
    ],
)
def test_what_ztunnel_drops_is_refused(match: dict[str, Any], place: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        policy_from_message(authorization(**match))
    assert caught.value.policy == "ns/p"
    assert PLACE in str(caught.value)
    assert f"{place}: " in str(caught.value)


@pytest.mark.parametrize("field", ["scope", "action"])
def test_unknown_numbers(field: str) -> None:
    message = authorization()
    setattr(message, field, 9)
    with pytest.raises(PolicyRefused, match=f"{field}: unknown number 9"):
        policy_from_message(message)


def test_a_policy_without_a_name() -> None:
    with pytest.raises(PolicyRefused, match="a policy without a name refused: name: is empty"):
        policy_from_message(M["Authorization"](namespace="ns"))
