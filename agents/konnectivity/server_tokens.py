"""Agents' tokens, reviewed by the Kubernetes API.

The texts of refusals are upstream's (apiserver-network-proxy: pkg/server/server.go,
validateAuthToken). Beyond it, the audiences of the answer are checked, as the API's documentation
asks, and a good answer is kept for a while: after a network failure every agent comes back at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from nodenet.agents.konnectivity.server_agents import Refused
from nodenet.agents.konnectivity.server_config import TokenRule
from nodenet.kube.client import ApiClient, Json
from nodenet.kube.errors import ApiError

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
#: Seconds a good answer is used again, never past the token's own end. A deleted account gets in
#: that much longer.
KEEP_SECONDS: Final = 60.0
#: Tokens kept; one is an agent.
MAX_KEPT: Final = 20_000
#: Of a header: the API refuses more too.
MAX_TOKEN_BYTES: Final = 32 << 10


class TokenReviewer:
    """See the module; an `server_agents.Authenticator`."""

    def __init__(self, client: ApiClient, rule: TokenRule) -> None:
        self._client = client
        self._rule = rule
        self._loop = asyncio.get_running_loop()
        self._good: dict[bytes, float] = {}
        self._asking: dict[bytes, asyncio.Lock] = {}
        self.reviews = 0
        """Questions to the API."""

    async def check(self, metadata: Sequence[tuple[str, str]]) -> None:
        """See `Authenticator`."""
        token = _token(metadata)
        key = hashlib.sha256(token.encode()).digest()
        if self._is_good(key):
            return
        # one question for all who show the same token at the same time
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if not self._is_good(key):
                    await self._ask(key, token)
        finally:
            if not lock.locked():
                self._asking.pop(key, None)

    def _is_good(self, key: bytes) -> bool:
        return self._good.get(key, 0.0) > self._loop.time()

    async def _ask(self, key: bytes, token: str) -> None:
        self.reviews += 1
        review: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._rule.audience]},
        }
        try:
            answer = await self._client.request("POST", PATH, review)
        except ApiError as error:
            raise _refused(f"Failed to authenticate request. err:{error.message}") from error
        self._judge(answer)
        if len(self._good) >= MAX_KEPT:
            self._forget()
        left = _seconds_left(token)
        self._good[key] = self._loop.time() + min(KEEP_SECONDS, left)

    def _judge(self, answer: Json) -> None:
        """Refused unless the answer lets the token in."""
        rule = self._rule
        status = answer.get("status")
        status = status if isinstance(status, dict) else {}
        if status.get("error"):
            raise _refused(f"lookup failed: {status['error']}")
        if status.get("authenticated") is not True:
            raise _refused("lookup failed: service account jwt not valid")
        audiences = status.get("audiences")
        if not isinstance(audiences, list) or rule.audience not in audiences:
            raise _refused(f'lookup failed: token is not for the audience "{rule.audience}"')
        user = status.get("user")
        name = user.get("username") if isinstance(user, dict) else None
        parts = name.split(":") if isinstance(name, str) else []
        if len(parts) != 4:
            raise _refused("lookup failed: unexpected username format")
        if parts[:2] != ["system", "serviceaccount"]:
            raise _refused("lookup failed: username returned is not a service account")
        if parts[2] != rule.namespace:
            raise _refused(
                f'lookup failed: incoming request from "{parts[2]}" namespace. '
                f'Expected "{rule.namespace}"'
            )
        if parts[3] != rule.service_account:
            raise _refused(
                f'lookup failed: incoming request from "{parts[3]}" service account. '
                f'Expected "{rule.service_account}"'
            )

    def _forget(self) -> None:
        now = self._loop.time()
        self._good = {key: until for key, until in self._good.items() if until > now}
        if len(self._good) >= MAX_KEPT:
            self._good.clear()


def _refused(text: str) -> Refused:
    return Refused(f"Failed to validate authentication token, err:{text}")


def _token(metadata: Sequence[tuple[str, str]]) -> str:
    """The one token of a request. Refused."""
    found = [value for name, value in metadata if name == "authorization"]
    if not found:
        raise Refused("Authentication context was not found in metadata")
    if len(found) > 1:
        raise Refused(f"too many ({len(found)}) tokens are received")
    if not found[0].startswith("Bearer "):
        raise Refused('received token does not have "Bearer " prefix')
    token = found[0].removeprefix("Bearer ").strip()
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise Refused(f"received token has {len(token)} bytes")
    return token


class _Claims(msgspec.Struct):
    exp: float | None = None


def _seconds_left(token: str) -> float:
    """Until the token's end, as it says itself; the API has just found it valid."""
    import time

    part = (token.split(".") + [""])[1]
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        claims = msgspec.json.decode(raw, type=_Claims)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return KEEP_SECONDS
    return KEEP_SECONDS if claims.exp is None else max(0.0, claims.exp - time.time())
