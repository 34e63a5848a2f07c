"""What went wrong, as the one line an operator sees and the JSON document a script reads.

Pure: an exception in, text out. `nodenet.cli.run` prints it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

import click

from nodenet.cli.params import spelling
from nodenet.errors import NodenetError

_RIGHTS = "run with sudo; needs CAP_BPF and CAP_NET_ADMIN"


class FailureDocument(TypedDict):
    """A failure as JSON."""

    error: str
    kind: str
    exit: int
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed run."""

    error: str
    """``WHAT: WHERE``, without the leading program name."""
    hint: str | None = None
    """``DO``."""
    kind: str
    """The class, stable: ``NotFound``, ``UsageError``, ``InternalError``."""
    exit: int

    @property
    def line(self) -> str:
        """What stderr gets."""
        return f"nodenet: {self.error}; {self.hint}" if self.hint else f"nodenet: {self.error}"

    def document(self) -> FailureDocument:
        """What stdout gets with -j."""
        return {"error": self.error, "kind": self.kind, "exit": self.exit, "hint": self.hint}


def innermost(error: BaseException) -> BaseException:
    """The one exception inside the group of a TaskGroup; ``error`` itself when it is no such."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> Failure:
    """The failure that an exception is."""
    if isinstance(error, NodenetError):
        hint = one_line(error.hint) if error.hint else None
        return Failure(
            error=one_line(error.message), hint=hint, kind=error.kind, exit=error.exit_code
        )
    if isinstance(error, click.ClickException):
        return _describe_click(error)
    if isinstance(error, PermissionError):
        return _describe_permission(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = error.filename or "stdout"
        return Failure(
            error=f"cannot write: {where}: no space left on device", kind="OSError", exit=1
        )
    return Failure(
        error=f"internal error: {_in_short(error)}{_place(error)}",
        hint="please report, -vv shows the trace",
        kind="InternalError",
        exit=1,
    )


def causes(error: BaseException) -> Iterator[str]:
    """One line for each exception behind ``error``, nearest first: what -v adds."""
    seen = {id(error)}
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, BaseExceptionGroup):
            for member in below.exceptions:
                yield _in_short(member)
        below = below.__cause__ or (None if below.__suppress_context__ else below.__context__)
        if below is None or id(below) in seen:
            return
        seen.add(id(below))
        yield _in_short(below)


def trace(error: BaseException) -> str:
    """The traceback: what -vv adds."""
    import traceback

    return "".join(traceback.format_exception(error))


def one_line(text: str) -> str:
    """``text`` without line breaks and control characters."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in joined)


def _in_short(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _place(error: BaseException) -> str:
    """`` (nodenet/conns/reader.py:42)``: the innermost line of ours."""
    import traceback  # a millisecond that a command which goes well does not pay

    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        head, found, tail = frame.filename.rpartition(f"{os.sep}nodenet{os.sep}")
        if found and "site-packages" not in tail:
            return f" (nodenet/{tail}:{frame.lineno})"
    return ""


def _is_kernels(path: object) -> bool:
    """Whether capabilities decide about it: pins, cgroups, what they are locked by."""
    return str(path).startswith(("/sys/", "/proc/", "/run/"))


def _describe_permission(error: PermissionError) -> Failure:
    what = error.filename or error.strerror or "operation not permitted"
    who = f" (uid {os.geteuid()})" if os.geteuid() else ""
    reason = f": {error.strerror}".lower() if error.filename and error.strerror else ""
    return Failure(
        error=one_line(f"not permitted{who}: {what}{reason}"),
        hint=_RIGHTS if error.filename is None or _is_kernels(error.filename) else "run with sudo",
        kind="NotPermitted",
        exit=1,
    )


def _describe_click(error: click.ClickException) -> Failure:
    """click's own complaints, in our form."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "nodenet"
    see = f"see: {path} --help"
    hint: str | None = see
    match error:
        case click.NoSuchOption():
            text = f"no option {error.option_name}: {path}"
            if error.possibilities:
                hint = f"did you mean {error.possibilities[0]}"
        case click.MissingParameter():
            text = f"missing {spelling(error.param)}: {path}"
        case click.BadOptionUsage():
            text = f"{_plain(error.message)}: {path}"
        case click.BadParameter():
            text, hint = f"{spelling(error.param)}: {_plain(error.message)}", see
        case click.UsageError():
            text = f"{_plain(error.message)}: {path}"
        case _:
            text, hint = _plain(error.format_message()), None
    kind = "UsageError" if isinstance(error, click.UsageError) else type(error).__name__
    return Failure(error=text, hint=hint, kind=kind, exit=error.exit_code)


def _plain(message: str) -> str:
    """click's sentence as a clause: lower case, no full stop, no quotes."""
    clause = one_line(message).rstrip(".").replace("'", "")
    return clause[:1].lower() + clause[1:]
