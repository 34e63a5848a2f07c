"""Errors of a start, with the flags that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet.agents.konnectivity import agent_config, server_config
from nodenet.agents.konnectivity.start_failures import Configuration, with_flags
from nodenet.httpd.sockets import AddressNotHere
from nodenet.konnectivity.tls_files import TlsUnusable

HERE = Path(__file__)


def files(folder: Path, *names: str) -> list[Path]:
    found = [folder / name for name in names]
    for path in found:
        path.write_text("x")
    return found


def server(folder: Path, *more: str) -> Configuration:
    cert, key, ca = files(folder, "c", "k", "ca")
    flags = [f"--cluster-cert={cert}", f"--cluster-key={key}", f"--cluster-ca-cert={ca}"]
    return server_config.load(["--uds-name=/x", "--server-port=0", *flags, *more], {})


def agent(folder: Path, *more: str) -> Configuration:
    cert, key, ca = files(folder, "c", "k", "ca")
    flags = [f"--agent-cert={cert}", f"--agent-key={key}", f"--ca-cert={ca}"]
    return agent_config.load([*flags, *more], {})


@pytest.mark.parametrize(("of", "prefix"), [(server, "cluster-"), (agent, "agent-")])
def test_a_file_has_its_flag(tmp_path: Path, of: type, prefix: str) -> None:
    config = of(tmp_path)
    authorities = "--cluster-ca-cert" if of is server else "--ca-cert"
    for name, reason, flag, hint in (
        ("c", "it has no certificate in PEM", f"--{prefix}cert", "openssl x509 -noout -text -in "),
        ("k", "it has no private key in PEM", f"--{prefix}key", "openssl pkey -noout -in "),
        ("k", "it is not the key of c", f"--{prefix}key", f"--{prefix}key and --{prefix}cert go"),
        ("k", "it is encrypted, and there is nobody", f"--{prefix}key", "openssl pkey -in "),
        ("ca", "it has no certificate in PEM", authorities, "openssl x509 -noout -text -in "),
    ):
        path = tmp_path / name
        with pytest.raises(TlsUnusable) as caught, with_flags(config):
            raise TlsUnusable(path, reason)
        assert caught.value.message == f"{flag}={path}: {reason}"
        assert caught.value.hint is not None and hint in caught.value.hint


def test_one_file_for_both(tmp_path: Path) -> None:
    config = server(tmp_path, f"--cluster-cert={HERE}", f"--cluster-key={HERE}")
    for reason, flag in (("no private key", "key"), ("no certificate", "cert")):
        with pytest.raises(TlsUnusable) as caught, with_flags(config):
            raise TlsUnusable(HERE, f"it has {reason} in PEM")
        assert caught.value.flag == f"--cluster-{flag}"


def test_an_address_has_its_flag_and_not_that_of_the_port(tmp_path: Path) -> None:
    one_port = ("--health-port=9000", "--admin-port=9000", "--admin-bind-address=fd00:0::7")
    config = server(tmp_path, "--health-bind-address=192.0.2.7", *one_port)
    for address, flag in (("192.0.2.7", "--health-bind-address"), ("fd00::7", "--admin-bind-")):
        with pytest.raises(AddressNotHere, match="cannot assign requested address") as caught:
            with with_flags(config):
                raise AddressNotHere(address, 9000)
        hint = caught.value.hint
        assert hint is not None and hint.startswith(f"give another {flag}")
    with pytest.raises(AddressNotHere) as caught, with_flags(agent(tmp_path)):
        raise AddressNotHere("127.0.0.1", 8094)
    assert caught.value.line().endswith(
        "give another --admin-bind-address, an address of this host"
    )


def test_what_no_flag_has_named_stays(tmp_path: Path) -> None:
    for error in (TlsUnusable(HERE, "why"), AddressNotHere("192.0.2.7", 1), ValueError("why")):
        with pytest.raises(type(error)) as caught, with_flags(server(tmp_path)):
            raise error
        assert caught.value is error
