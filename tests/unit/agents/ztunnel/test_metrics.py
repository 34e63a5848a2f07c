"""A scrape: what is in it, in which format, and that both parse."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from nodenet import __version__
from nodenet.agents.ztunnel.loop_lag import LoopLag
from nodenet.agents.ztunnel.metrics import Metrics, ProxyFigures
from nodenet.agents.ztunnel.telemetry import Telemetry, silent
from nodenet.httpd.messages import Request
from tests.unit.agents.ztunnel.flows import Bytes, inbound, outbound

FIGURES = ProxyFigures(
    active_proxies=3,
    pending_proxies=1,
    proxies_started=5,
    proxies_stopped=2,
    pool_connections=7,
    peer_connections=2,
    handshakes_failed={("outbound", "PeerUntrusted"): 4},
    refused={"over-limit": 9},
    dials_failed={"ECONNREFUSED": 2},
    crl_rejections={"inbound": 1},
    mesh={"workload": 12},
)


def scrape(
    loop: asyncio.AbstractEventLoop, telemetry: Telemetry, figures: ProxyFigures, accept: str = ""
) -> tuple[str, str]:
    """Content type and body."""

    async def main() -> tuple[str, str]:
        metrics = Metrics(telemetry, lambda: figures)
        request = Request(method="GET", path="/metrics", query={}, headers={"accept": accept})
        answer = metrics.answer(request)
        assert not isinstance(answer.body, bytes)
        return answer.content_type, b"".join([piece async for piece in answer.body]).decode()

    return loop.run_until_complete(main())


def values(families: list[Metric]) -> dict[str, float]:
    """By name and labels as they are written."""
    found = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_without_a_wish_it_is_text(loop: asyncio.AbstractEventLoop) -> None:
    kind, body = scrape(loop, silent(), FIGURES)
    assert kind == "text/plain; charset=utf-8"
    assert body.endswith("# EOF\n")
    assert body.count("# EOF") == 1
    found = values(list(parse_plain(body)))
    for wanted, value in {
        f"istio_build{{component=ztunnel,tag={__version__}}}": 1,
        "istio_tcp_sockets_open{reporter=source}": 0,
        "workload_manager_active_proxy_count{}": 3,
        "workload_manager_pending_proxy_count{}": 1,
        "workload_manager_proxies_started_total{}": 5,
        "workload_manager_proxies_stopped_total{}": 2,
        "nodenet_pool_connections{}": 7,
        "nodenet_handshakes_failed_total{direction=outbound,reason=PeerUntrusted}": 4,
        "nodenet_connections_refused_total{reason=over-limit}": 9,
        "nodenet_dials_failed_total{errno=ECONNREFUSED}": 2,
        "istio_crl_policy_rejections_total{reporter=destination}": 1,
        "nodenet_mesh_resources{kind=workload}": 12,
    }.items():
        assert found[wanted] == value
    assert found["process_open_fds{}"] > 0
    assert found["process_max_fds{}"] > 0


def test_openmetrics_for_who_asks(loop: asyncio.AbstractEventLoop) -> None:
    telemetry = silent()
    telemetry.opened(outbound())
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    kind, body = scrape(loop, telemetry, FIGURES, accept)
    assert kind == "application/openmetrics-text;charset=utf-8;version=1.0.0"
    names = {family.name for family in parse_open(body)}  # type: ignore[no-untyped-call]
    assert {"istio_tcp_connections_opened", "workload_manager_proxies_started"} <= names
    assert not any(name.startswith("tokio") for name in names)


def test_what_nobody_counts_is_not_there(loop: asyncio.AbstractEventLoop) -> None:
    _, body = scrape(loop, silent(), ProxyFigures())
    assert "workload_manager" not in body
    assert "crl" not in body


def test_unstable_metrics_say_so(loop: asyncio.AbstractEventLoop) -> None:
    _, body = scrape(loop, silent(), FIGURES)
    helps = dict(line.split(" ", 3)[2:] for line in body.splitlines() if line.startswith("# HELP"))
    for name in (
        "istio_tcp_sockets_open",
        "istio_tcp_connections_failed_total",
        "istio_crl_policy_rejections_total",
    ):
        assert "unstable" in helps[name]
    assert "unstable" not in helps["istio_tcp_connections_opened_total"]


def test_bytes_of_live_connections_are_in_it(loop: asyncio.AbstractEventLoop) -> None:
    telemetry = silent()
    telemetry.opened(inbound(), Bytes(sent=22, received=11))
    _, body = scrape(loop, telemetry, FIGURES)
    found = values(list(parse_plain(body)))
    (received,) = [v for k, v in found.items() if k.startswith("istio_tcp_received_bytes_total")]
    (sent,) = [v for k, v in found.items() if k.startswith("istio_tcp_sent_bytes_total")]
    assert (received, sent) == (11, 22)
    # the tunnel's socket is the other proxy's connection
    assert found["istio_tcp_sockets_open{reporter=destination}"] == 2


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_the_lag_of_the_loop_is_a_histogram(loop: asyncio.AbstractEventLoop, accept: str) -> None:
    lag = LoopLag(loop)
    lag._look()
    metrics = Metrics(silent(), ProxyFigures, lag=lag)
    lag.close()

    async def body() -> str:
        pieces = metrics.scrape(openmetrics=bool(accept))
        return b"".join([piece async for piece in pieces]).decode()

    found = loop.run_until_complete(body())
    families = {f.name: f for f in (parse_open if accept else parse_plain)(found)}
    family = families["nodenet_event_loop_lag_seconds"]
    assert family.type == "histogram"
    samples = {s.name + s.labels.get("le", ""): s.value for s in family.samples}
    assert samples["nodenet_event_loop_lag_seconds_count"] == 1
    assert samples["nodenet_event_loop_lag_seconds_bucket+Inf"] == 1
