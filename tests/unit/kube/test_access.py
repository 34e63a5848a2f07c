"""Where the API is, from a pod's files and from kubeconfigs."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from nodenet.kube.access import Access, NoAccess, from_kubeconfig, in_cluster

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
    with pytest.raises(NoAccess, match="credentials for x:1"):
        Access(host="x", port=1, ca_file=tmp_path / "ca").context()
    with pytest.raises(NoAccess, match="needs its key"):
        (tmp_path / "c").write_text("x")
        Access(host="x", port=1, cert_file=tmp_path / "c").context()
