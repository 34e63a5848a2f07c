"""The embedded CA: what it signs, what it refuses, restarts, sharing and rotation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodenet.identity import ca_directory
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.ca_directory import CaDirectory
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.chain import CertificateChain
from nodenet.identity.csr import CsrInvalid, make_csr
from nodenet.identity.errors import CaError, CaStateError
from nodenet.identity.issuing import DAY_SECONDS, MAX_LEAF_SECONDS
from nodenet.identity.keys import HASH, PrivateKey
from nodenet.identity.peer import check_client
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import TlsContexts
from tests.unit.identity.authority import HandshakeBroke, shake

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")
NOW = 1_800_000_000.0


class Time:
    """A clock that is set."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def _signed(ca: EmbeddedCa, identity: Identity = CART, ttl: float = 3600) -> CertificateChain:
    return ca.sign_now(make_csr(PrivateKey.generate(), identity), identity, ttl)


def _workload(ca: EmbeddedCa, identity: Identity) -> WorkloadCertificate:
    key = PrivateKey.generate()
    chain = ca.sign_now(make_csr(key, identity), identity, 3600)
    return WorkloadCertificate.from_chain(identity, key, chain, now=time.time())


def test_a_leaf_is_what_a_workload_needs(tmp_path: Path) -> None:
    ca = EmbeddedCa(tmp_path, now=Time())
    key = PrivateKey.generate()
    chain = asyncio.run(ca.sign(make_csr(key, CART), CART, 3600))
    leaf = chain.leaf.library()
    assert leaf.subject == x509.Name([])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert list(names.value) == [x509.UniformResourceIdentifier(str(CART))]
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert chain.leaf.public_key_der == key.public_der()
    assert (chain.leaf.not_before, chain.leaf.not_after) == (NOW - 60, NOW + 3600)
    assert chain.intermediates == ()
    assert [c.der for c in chain.roots] == [c.der for c in ca.roots]
    leaf.verify_directly_issued_by(chain.roots[0].library())


@pytest.mark.parametrize("intermediate", [False, True])
def test_workloads_of_one_ca_talk(tmp_path: Path, intermediate: bool) -> None:
    ca = EmbeddedCa(tmp_path, intermediate=intermediate)
    contexts = TlsContexts()
    server, client = _workload(ca, BANK), _workload(ca, CART)
    assert len(server.intermediates) == intermediate
    ends = shake(contexts.server(server), contexts.client(client))
    assert check_client(ends.server, "cluster.local") == CART


def test_serials_are_random(tmp_path: Path) -> None:
    ca = EmbeddedCa(tmp_path)
    serials = {_signed(ca).leaf.serial for _ in range(32)}
    assert len(serials) == 32
    assert all(0 < serial < 1 << 159 for serial in serials)
    assert min(serials) > 1 << 100  # 96 random bits at least, in all of 32, but for 2**-54


@pytest.mark.parametrize(
    ("ttl", "life", "skew"),
    [(10, 10, 1), (600, 600, 60), (365 * DAY_SECONDS, MAX_LEAF_SECONDS, 60)],
)
def test_life_is_as_asked_up_to_a_limit(
    tmp_path: Path, ttl: float, life: float, skew: float
) -> None:
    leaf = _signed(EmbeddedCa(tmp_path, now=Time()), ttl=ttl).leaf
    assert (leaf.not_before, leaf.not_after) == (NOW - skew, NOW + life)


def test_life_has_the_limit_of_the_ca(tmp_path: Path) -> None:
    clock = Time()
    assert _signed(EmbeddedCa(tmp_path, now=clock, max_ttl_seconds=60)).leaf.not_after == NOW + 60
    ca = EmbeddedCa(tmp_path, now=clock)
    clock.now = ca.roots[0].not_after - 100
    assert _signed(ca).leaf.not_after == ca.roots[0].not_after
    clock.now = ca.roots[0].not_after + 1
    with pytest.raises(CaError, match="rotate the root"):
        _signed(ca)


def test_an_old_root_is_complained_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    root = EmbeddedCa(tmp_path, now=clock).roots[0]
    assert not caplog.records
    clock.now = root.not_after - 10 * DAY_SECONDS
    EmbeddedCa(tmp_path, now=clock)
    assert "ends in 10 days" in caplog.text


@pytest.mark.parametrize("ttl", [0, -1, 0.5, float("nan")])
def test_no_certificate_without_life(tmp_path: Path, ttl: float) -> None:
    with pytest.raises(CaError, match="of life"):
        _signed(EmbeddedCa(tmp_path), ttl=ttl)


def test_a_request_for_another_identity_is_refused(tmp_path: Path) -> None:
    csr = make_csr(PrivateKey.generate(), BANK)
    with pytest.raises(CaError, match="bank/sa/vault"):
        EmbeddedCa(tmp_path).sign_now(csr, CART, 60)


def _csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, names: list[x509.GeneralName]) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return builder.sign(key, HASH).public_bytes(serialization.Encoding.PEM).decode()


def test_odd_requests_are_refused(tmp_path: Path) -> None:
    ca = EmbeddedCa(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.UniformResourceIdentifier
    good = _csr(key, [uri(str(CART))])
    assert ca.sign_now(good, CART, 60).leaf.uris == (str(CART),)
    broken = good.splitlines()
    broken[-3] = broken[-3][:10] + ("A" if broken[-3][10] != "A" else "B") + broken[-3][11:]
    for csr in (
        "",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "\n".join(broken),
        good + " " * 20_000,
        _csr(key, []),
        _csr(key, [uri(str(CART)), uri(str(BANK))]),
        _csr(key, [x509.DNSName("cart")]),
        _csr(key, [uri("spiffe://cluster.local/cart")]),
        _csr(ec.generate_private_key(ec.SECP384R1()), [uri(str(CART))]),
        _csr(rsa.generate_private_key(65537, 2048), [uri(str(CART))]),
    ):
        with pytest.raises(CsrInvalid, match="signing request: "):
            ca.sign_now(csr, CART, 60)


def test_a_restart_goes_on_with_the_same_root(tmp_path: Path) -> None:
    before = _workload(EmbeddedCa(tmp_path), CART)
    after = _workload(EmbeddedCa(tmp_path), BANK)
    assert before.roots_pem == after.roots_pem
    contexts = TlsContexts()
    assert shake(contexts.server(after), contexts.client(before)).talk(b"x") == b"x"


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "ca"
    old = os.umask(0)
    try:
        EmbeddedCa(directory, intermediate=True).add_root()
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()}
    assert modes == {
        "authority.pem": 0o600,
        "intermediate.pem": 0o600,
        "next.pem": 0o600,
        "roots.pem": 0o644,
        "lock": 0o600,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert "PRIVATE" not in (directory / "roots.pem").read_text()


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    EmbeddedCa(tmp_path)
    (tmp_path / "authority.pem").chmod(0o640)
    with pytest.raises(CaStateError, match="mode 0640") as caught:
        EmbeddedCa(tmp_path)
    assert caught.value.line().endswith(f"chmod 600 {tmp_path}/authority.pem")


@pytest.mark.parametrize("damage", ["empty", "half", "text", "other key", "no certificate"])
def test_a_broken_authority_is_never_replaced(tmp_path: Path, damage: str) -> None:
    EmbeddedCa(tmp_path)
    path = tmp_path / "authority.pem"
    good = path.read_bytes()
    certificate = good[good.index(b"-----BEGIN CERT") :]
    bad = {
        "empty": b"",
        "half": good[: len(good) // 2],
        "text": b"\xff\xfe not PEM",
        "other key": PrivateKey.generate().pem() + certificate,
        "no certificate": good[: good.index(b"-----BEGIN CERT")],
    }[damage]
    path.write_bytes(bad)
    with pytest.raises(CaStateError, match="authority.pem") as caught:
        EmbeddedCa(tmp_path)
    assert path.read_bytes() == bad
    error: BaseException | None = caught.value
    secret = good.splitlines()[1].decode()[:16]
    while error is not None:
        assert secret not in repr(error)
        error = error.__cause__


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaStateError, match="file"):
        EmbeddedCa(tmp_path / "file")
    with pytest.raises(CaStateError, match="directory of the CA .*: not a directory"):
        EmbeddedCa(tmp_path / "file" / "ca")


def test_a_lost_bundle_is_made_again(tmp_path: Path) -> None:
    first = EmbeddedCa(tmp_path).roots[0]
    (tmp_path / "roots.pem").unlink()
    assert [c.der for c in EmbeddedCa(tmp_path).roots] == [first.der]
    assert (tmp_path / "roots.pem").read_text() == first.pem


def test_an_intermediate_is_renewed_in_the_middle_of_its_life(tmp_path: Path) -> None:
    clock = Time()
    ca = EmbeddedCa(tmp_path, intermediate=True, now=clock)
    (first,) = _signed(ca).intermediates
    clock.now = first.middle - 1
    assert _signed(ca).intermediates[0].der == first.der
    clock.now = first.middle
    (second,) = _signed(ca).intermediates
    assert second.der != first.der
    second.library().verify_directly_issued_by(ca.roots[0].library())
    assert EmbeddedCa(tmp_path, intermediate=True, now=clock).roots[0].der == ca.roots[0].der


def test_roots_rotate_without_a_moment_of_distrust(tmp_path: Path) -> None:
    """Two proxies share the directory; any two certificates of neighbouring steps must do."""
    one, two = (EmbeddedCa(tmp_path, intermediate=i) for i in (False, True))
    contexts = TlsContexts()
    steps = [(_workload(one, CART), _workload(two, BANK))]
    old = one.roots[0]
    new = one.add_root()
    assert two.add_root().der == new.der
    for step in (None, two.switch_root, one.retire_roots):
        if step is not None:
            step()
        steps.append((_workload(one, CART), _workload(two, BANK)))
    assert [c.der for c in steps[1][0].roots] == [old.der, new.der]
    assert steps[1][0].leaf.issuer == old.subject
    assert steps[2][0].leaf.issuer == new.subject
    assert [c.der for c in steps[3][1].roots] == [new.der]
    for before, after in zip(steps, steps[1:], strict=False):
        for left, right in ((before[0], after[1]), (after[0], before[1])):
            assert shake(contexts.server(left), contexts.client(right)).talk(b"x") == b"x"
    with pytest.raises(HandshakeBroke):
        shake(contexts.server(steps[0][0]), contexts.client(steps[3][1]))
    with pytest.raises(CaStateError, match="no next root"):
        one.switch_root()


def test_the_next_root_is_trusted_before_it_signs(tmp_path: Path) -> None:
    """A writer killed between its two files leaves a next root that nobody trusts yet."""
    ca = EmbeddedCa(tmp_path)
    bundle = (tmp_path / "roots.pem").read_text()
    new = ca.add_root()
    (tmp_path / "roots.pem").write_text(bundle)
    with pytest.raises(CaStateError, match="add it again"):
        ca.switch_root()
    assert ca.add_root().der == new.der
    ca.switch_root()
    assert _signed(ca).leaf.issuer == new.subject


_OPENS = """
import sys
from pathlib import Path
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.csr import make_csr
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity

cart = Identity("cluster.local", "shop", "cart")
csr = make_csr(PrivateKey.generate(), cart)
print("ready", flush=True)
sys.stdin.read()
chain = EmbeddedCa(Path(sys.argv[1]), intermediate=True).sign_now(csr, cart, 60)
print(chain.intermediates[0].serial, *(root.serial for root in chain.roots))
"""


def test_processes_that_start_together_share_one_root(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OPENS, str(tmp_path / "ca")]
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(4)
        ]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        found = {child.stdout.read() for child in children if child.stdout is not None}
    assert [child.returncode for child in children] == [0] * 4
    assert len(found) == 1 and found != {""}


#: Children that are killed before their first, second, ... call that changes what is on the disk,
#: until one comes to its end; how many there were is printed.
_STOPS = """
import os, signal, sys
from pathlib import Path
from nodenet.identity.ca import EmbeddedCa

def stop_at(name):
    call = getattr(os, name)
    def counted(*args, **kwargs):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*args, **kwargs)
    setattr(os, name, counted)

for name in ("fsync", "fchmod", "replace"):
    stop_at(name)
for left in range(100):
    child = os.fork()
    if not child:
        ca = EmbeddedCa(Path(sys.argv[1], str(left)), intermediate=True)
        ca.add_root()
        ca.switch_root()
        ca.retire_roots()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != signal.SIGKILL:
        print(left)
        sys.exit(status)
"""


def test_killed_anywhere_it_comes_up_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STOPS, str(tmp_path)],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    )
    kills = int(done.stdout)
    assert kills > 10
    for number in range(kills + 1):
        directory = tmp_path / str(number)
        leaf = _signed(EmbeddedCa(directory, intermediate=True))
        assert leaf.intermediates[0].issuer in {root.subject for root in leaf.roots}
        assert not list(directory.glob(".*"))


def test_a_lock_that_is_never_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca_directory, "LOCK_SECONDS", 0.02)
    directory = CaDirectory(tmp_path)
    with directory._locked(), pytest.raises(CaStateError, match="held by another process"):
        EmbeddedCa(tmp_path)


def test_nothing_is_logged_of_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ca = EmbeddedCa(tmp_path, intermediate=True)
        ca.add_root()
        _signed(ca)
    secrets = [
        line
        for name in ("authority.pem", "intermediate.pem", "next.pem")
        for line in (tmp_path / name).read_text().splitlines()[1:3]
    ]
    state = repr(vars(ca)) + repr(vars(ca._directory)) + repr(ca._state)
    assert not any(secret in caplog.text + state for secret in secrets)
