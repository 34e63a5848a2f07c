"""Where the API is, from a pod's files and from kubeconfigs."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from nodenet.kube.access import Access, NoAccess, from_kubeconfig, in_cluster
from tests.interop.certificates import Authority
from tests.unit.tls.wire import Theirs, connect, their_server

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pods_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_text("x")
    found = in_cluster(POD, tmp_path)
    assert found == Access(
        host="10.96.0.1", port=443, token_file=tmp_path / "token", ca_file=tmp_path / "ca.crt"
    )
    assert found.bearer() == "abc" and str(found) == "10.96.0.1:443"
    (tmp_path / "token").write_text("rotated")
    assert found.bearer() == "rotated"


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": "x"}, POD])
def test_outside_of_a_pod(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(NoAccess) as caught:
        in_cluster(environ, tmp_path)
    assert caught.value.hint == "give --kubeconfig"


def config(folder: Path, user: dict[str, object], **cluster: object) -> Path:
    path = folder / "kubeconfig"
    server = {"server": "https://[fd00::1]:6443/x/"}
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": server | cluster}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def test_a_kubeconfig_with_a_token(tmp_path: Path) -> None:
    found = from_kubeconfig(config(tmp_path, {"token": "t"}, **{"tls-server-name": "k8s"}))
    assert (found.host, found.port, found.path) == ("fd00::1", 6443, "/x")
    assert found.bearer() == "t" and found.server_name == "k8s" and str(found) == "[fd00::1]:6443"


def test_files_are_beside_the_kubeconfig_and_data_is_decoded(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    for name in ("ca.crt", "tok"):
        (tmp_path / name).write_text("x")
    found = from_kubeconfig(
        config(
            tmp_path,
            {"tokenFile": "tok", "client-certificate-data": data, "client-key-data": data},
            **{"certificate-authority": "ca.crt"},
        )
    )
    assert found.token_file == tmp_path / "tok" and found.ca_file == tmp_path / "ca.crt"
    assert found.cert_data == found.key_data == b"PEM"
    assert found.files() == [tmp_path / "kubeconfig", tmp_path / "ca.crt", tmp_path / "tok"]


@pytest.mark.parametrize(
    ("user", "cluster", "text"),
    [
        ({"exec": {"command": "aws"}}, {}, "needs exec"),
        ({"auth-provider": {}}, {}, "needs auth-provider"),
        ({}, {"server": "ftp://x"}, "no URL"),
        ({}, {"certificate-authority-data": "%%%"}, "base64"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], text: str
) -> None:
    with pytest.raises(NoAccess, match=text):
        from_kubeconfig(config(tmp_path, user, **cluster))


@pytest.mark.parametrize("text", ["", "[]", "{}", "a: [", "current-context: x\ncontexts: [1]"])
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(NoAccess):
        from_kubeconfig(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoAccess, match="kubeconfig"):
        from_kubeconfig(tmp_path / "nothing")
    with pytest.raises(NoAccess, match="no such file"):
        Access(host="x", port=1, token_file=tmp_path / "t").bearer()
    (tmp_path / "c").write_text("x")
    with pytest.raises(NoAccess, match="needs its key"):
        Access(host="x", port=1, cert_file=tmp_path / "c").context()


@pytest.mark.parametrize(
    ("user", "key"),
    [
        ({}, "certificate-authority"),
        ({"client-certificate": "gone", "client-key": "k"}, "client-certificate"),
        ({"client-certificate": "c", "client-key": "gone"}, "client-key"),
        ({"tokenFile": "gone"}, "tokenFile"),
    ],
)
def test_a_kubeconfig_whose_files_are_not_there_is_refused_at_once(
    tmp_path: Path, user: dict[str, object], key: str
) -> None:
    """Not when somebody first asks the API, after the start was said to be good."""
    for name in "ck":
        (tmp_path / name).write_text("x")
    cluster = {key: "gone"} if key == "certificate-authority" else {}
    path = config(tmp_path, user, **cluster)
    with pytest.raises(NoAccess) as caught:
        from_kubeconfig(path)
    expected = f"kubeconfig {path}: {key} {tmp_path}/gone: no such file or directory"
    assert caught.value.message == expected


def test_a_file_that_is_not_used_need_not_be_there(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    keys = ("client-certificate", "client-key")
    user: dict[str, object] = {key: "gone" for key in keys}
    user |= {f"{key}-data": data for key in keys}
    cluster = {"certificate-authority": "gone", "certificate-authority-data": data}
    found = from_kubeconfig(config(tmp_path, user, **cluster))
    assert found.ca_data == found.cert_data == found.key_data == b"PEM"
    for other in ({"server": "http://x"}, {"insecure-skip-tls-verify": True}):
        unused = {"certificate-authority": "gone", **other}
        assert from_kubeconfig(config(tmp_path, {"token": "t"}, **unused)).token == "t"


def test_a_token_stands_in_until_its_file_is_there(tmp_path: Path) -> None:
    found = from_kubeconfig(config(tmp_path, {"tokenFile": "later", "token": "first"}))
    assert found.bearer() == "first"
    (tmp_path / "later").write_text("second\n")
    assert found.bearer() == "second"


def test_what_is_wrong_with_credentials_names_the_file_at_fault(tmp_path: Path) -> None:
    pair = Authority("ca").issue(tmp_path, "client")
    other = Authority("ca").issue(tmp_path, "other")
    rubbish, gone = tmp_path / "rubbish", tmp_path / "gone"
    rubbish.write_text("x")

    def said(**files: Path | bytes) -> str:
        with pytest.raises(NoAccess) as caught:
            Access(host="x", port=1, **files).context()  # type: ignore[arg-type]  # files and data
        return caught.value.message.removeprefix("credentials for x:1: ")

    missing = "no such file or directory"
    assert said(ca_file=gone) == f"certificate-authority {gone}: {missing}"
    assert said(ca_file=rubbish).startswith(f"certificate-authority {rubbish}: no cert")
    assert said(ca_data=b"x").startswith("certificate-authority-data: ")
    assert said(cert_file=gone, key_file=pair.key) == f"client-certificate {gone}: {missing}"
    assert said(cert_file=pair.cert, key_file=gone) == f"client-key {gone}: {missing}"
    both = f"client-certificate {pair.cert} with client-key {other.key}: key values mismatch"
    assert said(cert_file=pair.cert, key_file=other.key) == both
    mixed = f"client-certificate-data with client-key {pair.key}: "
    assert said(cert_data=b"x", key_file=pair.key).startswith(mixed)


def test_an_authority_that_another_one_signed_is_believed(tmp_path: Path) -> None:
    """As by Go: who gives that CA need not have the other one."""
    middle = Authority("middle", issuer=Authority("root"))
    for access in (
        Access(host="x", port=1, ca_file=middle.write(tmp_path / "ca")),
        Access(host="x", port=1, ca_data=(tmp_path / "ca").read_bytes()),
    ):
        context = access.context()
        assert context is not None
        server = Theirs(their_server(middle.issue(tmp_path, "server", "localhost")))
        connect(Theirs(context, "localhost"), server)
