"""Why connections end that have done nothing wrong, with the texts of the access log.

Source of the texts: ztunnel: src/proxy.rs, Error.
"""

from __future__ import annotations

from typing import ClassVar

from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from nodenet.errors import NodenetError
from nodenet.mesh.rbac import POLICY_CHANGED


class Draining(NodenetError):
    """The proxy or the pod is leaving."""

    response_flag: ClassVar = ResponseFlag.NONE

    def __init__(self) -> None:
        super().__init__("connection closed due to connection drain")


class PolicyChanged(NodenetError):
    """It was let in, and the policies of this moment would not."""

    response_flag: ClassVar = ResponseFlag.DENY

    def __init__(self) -> None:
        super().__init__(POLICY_CHANGED)


class PolicyRejection(NodenetError):
    """The policies do not let it in; the message is what the access log says."""

    response_flag: ClassVar = ResponseFlag.DENY
