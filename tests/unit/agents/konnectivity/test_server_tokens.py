"""Tokens of agents, reviewed by an API in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodenet.agents.konnectivity import server_tokens
from nodenet.agents.konnectivity.server_agents import Refused
from nodenet.agents.konnectivity.server_config import TokenRule
from nodenet.agents.konnectivity.server_tokens import TokenReviewer
from nodenet.kube.client import ApiClient
from tests.unit.agents.konnectivity.agent_scene import run
from tests.unit.kube.fake_api import FakeApi, fake_api

RULE = TokenRule("kube-system", "konnectivity-agent", "system:konnectivity-server")
AGENT = "system:serviceaccount:kube-system:konnectivity-agent"
PREFIX = "Failed to validate authentication token, err:"


def good(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "authenticated": True,
        "audiences": spec["audiences"],
        "user": {"username": AGENT},
    }


def bearer(*tokens: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}") for token in tokens]


@asynccontextmanager
async def reviewer(**settings: Any) -> AsyncIterator[tuple[TokenReviewer, FakeApi]]:
    async with fake_api(**settings) as api, ApiClient(api.access) as client:
        yield TokenReviewer(client, RULE), api


async def refusal(reviewer: TokenReviewer, metadata: list[tuple[str, str]]) -> str:
    with pytest.raises(Refused) as caught:
        await reviewer.check(metadata)
    return caught.value.message


def test_a_good_token_is_let_in_and_not_asked_for_again() -> None:
    async def test() -> None:
        async with reviewer(review=good) as (door, api):
            await asyncio.gather(*(door.check(bearer("t")) for _ in range(20)))
            await door.check(bearer("t"))
            assert door.reviews == 1 == len(api.asked)
            await door.check(bearer("another"))
            assert door.reviews == 2

    run(test())


def test_the_audience_is_asked_for() -> None:
    seen: list[dict[str, Any]] = []

    def review(spec: dict[str, Any]) -> dict[str, Any]:
        seen.append(spec)
        return good(spec)

    async def test() -> None:
        async with reviewer(review=review) as (door, _):
            await door.check(bearer("t"))
        assert seen == [{"token": "t", "audiences": ["system:konnectivity-server"]}]

    run(test())


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ([], "Authentication context was not found in metadata"),
        (bearer("a", "b"), "too many (2) tokens are received"),
        ([("authorization", "Basic x")], 'received token does not have "Bearer " prefix'),
        (bearer(""), "received token has 0 bytes"),
    ],
)
def test_what_is_no_token_is_refused_without_a_question(
    metadata: list[tuple[str, str]], text: str
) -> None:
    async def test() -> None:
        async with reviewer(review=good) as (door, api):
            assert await refusal(door, metadata) == text
            assert api.asked == []

    run(test())


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"error": "token expired"}, "lookup failed: token expired"),
        ({"authenticated": False}, "lookup failed: service account jwt not valid"),
        ({}, "lookup failed: service account jwt not valid"),
        (
            {"authenticated": True, "user": {"username": AGENT}},
            'lookup failed: token is not for the audience "system:konnectivity-server"',
        ),
        (
            {"authenticated": True, "audiences": ["other"], "user": {"username": AGENT}},
            'lookup failed: token is not for the audience "system:konnectivity-server"',
        ),
        (
            {"authenticated": True, "audiences": [RULE.audience], "user": {"username": "admin"}},
            "lookup failed: unexpected username format",
        ),
        (
            {"authenticated": True, "audiences": [RULE.audience], "user": {"username": "a:b:c:d"}},
            "lookup failed: username returned is not a service account",
        ),
        (
            {
                "authenticated": True,
                "audiences": [RULE.audience],
                "user": {"username": "system:serviceaccount:default:konnectivity-agent"},
            },
            'lookup failed: incoming request from "default" namespace. Expected "kube-system"',
        ),
        (
            {
                "authenticated": True,
                "audiences": [RULE.audience],
                "user": {"username": "system:serviceaccount:kube-system:coredns"},
            },
            'lookup failed: incoming request from "coredns" service account. '
            'Expected "konnectivity-agent"',
        ),
    ],
)
def test_what_the_api_does_not_vouch_for_is_refused(status: dict[str, Any], text: str) -> None:
    async def test() -> None:
        async with reviewer(review=lambda _: status) as (door, _):
            assert await refusal(door, bearer("t")) == PREFIX + text
            assert await refusal(door, bearer("t")) == PREFIX + text
            assert door.reviews == 2, "a refusal is asked for again"

    run(test())


def test_an_api_that_refuses_is_told() -> None:
    async def test() -> None:
        async with reviewer(faults=[403]) as (door, _):
            text = await refusal(door, bearer("t"))
            assert text.startswith(PREFIX + "Failed to authenticate request. err:kubernetes API")
            assert "403" in text

    run(test())


def jwt(seconds: float) -> str:
    raw = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode())
    return f"h.{raw.decode().rstrip('=')}.s"


def test_an_expired_token_is_not_remembered() -> None:
    async def test() -> None:
        async with reviewer(review=good) as (door, _):
            for token, reviews in ((jwt(-10), 2), (jwt(3600), 1), ("no.%%%.jwt", 1)):
                before = door.reviews
                await door.check(bearer(token))
                await door.check(bearer(token))
                assert door.reviews - before == reviews

    run(test())


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tokens, "MAX_KEPT", 3)

    async def test() -> None:
        async with reviewer(review=good) as (door, _):
            for number in range(10):
                await door.check(bearer(f"t{number}"))
            assert len(door._good) <= 3 and not door._asking

    run(test())
