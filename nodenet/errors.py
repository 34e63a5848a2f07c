"""The roots of every error nodenet raises, with the exit code the command line gives each.

An operator's error is one line, ``WHAT: WHERE; DO`` (docs/cli.md), so the message of an error
class is written for a person. Facts stand as attributes, the cause is chained.
"""

from __future__ import annotations

from typing import ClassVar


class NodenetError(Exception):
    """Base of every error raised by nodenet.

    ``exit_code`` is what the command line exits with; ``hint`` says what to do about it, or None
    when the message already does.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def kind(self) -> str:
        """The class name, the ``kind`` key of an error printed as JSON."""
        return type(self).__name__

    def line(self) -> str:
        """The one line an operator sees, without the leading ``nodenet: ``."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(NodenetError):
    """The caller asked for something that cannot mean anything (exit 2)."""

    exit_code = 2


class NotSupported(NodenetError):
    """This kernel or host lacks something (exit 3).

    ``feature`` is the probe's stable id or the hook's name, ``needs`` what would bring it.
    """

    exit_code = 3

    def __init__(self, feature: str, needs: str, *, hint: str | None = None) -> None:
        super().__init__(f"{feature}: not supported here; needs {needs}", hint=hint)
        self.feature = feature
        self.needs = needs


class NotThereYet(NodenetError):
    """What was asked for is planned, and not in this version (exit 3).

    ``what`` is the command or setting, the hint says what does its work today.
    """

    exit_code = 3

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what}: not there yet in this version", hint=instead)
        self.what = what


class NotFound(NodenetError):
    """The named thing is not there: pod, connection, lab, socket, pin (exit 4)."""

    exit_code = 4


class NotPermitted(NodenetError):
    """The process lacks a right; the message names the capability (exit 1)."""
