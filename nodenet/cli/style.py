"""What the output may look like: width, colour, the sign for left-out text.

Decided once a run from the options, the environment and what stdout is. Pure but for
`of_stdout`, which looks at the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Colour(Enum):
    """The three colours there are; they only repeat what a state word says."""

    GOOD = "32"
    WARN = "33"
    BAD = "31"


#: State words as tables print them. Any other word stays plain.
STATE_COLOURS: Mapping[str, Colour] = {
    **dict.fromkeys(("ok", "yes", "up", "live", "ready", "running", "available"), Colour.GOOD),
    **dict.fromkeys(("degraded", "warn", "unknown", "draining", "pending"), Colour.WARN),
    **dict.fromkeys(
        ("missing", "fail", "failed", "down", "gone", "refused", "unavailable"), Colour.BAD
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the text form of an answer is to be rendered."""

    width: int | None = None
    """Columns of the terminal; None when stdout is none: nothing is elided or dropped."""
    colour: bool = False
    redraw: bool = False
    """Whether the screen may be cleared between two rounds of --watch."""
    ellipsis: str = "…"
    dot: str = "·"
    """Between the parts of a line; see `joined`."""
    headers: bool = True
    wide: bool = False
    exact: bool = False

    def paint(self, word: str, text: str | None = None) -> str:
        """``text`` (by default the word) in the colour of the state ``word``.

        Of several words the last one counts: ``15006 down``.
        """
        shown = word if text is None else text
        last = word.rpartition(" ")[2].lower()
        colour = STATE_COLOURS.get(last) if self.colour else None
        return f"\x1b[{colour.value}m{shown}\x1b[0m" if colour else shown

    def joined(self, parts: Sequence[str]) -> str:
        """The parts with dots between, on as many lines as the terminal needs."""
        lines = [""]
        for part in parts:
            longer = f"{lines[-1]} {self.dot} {part}" if lines[-1] else part
            if lines[-1] and self.width is not None and len(longer) > self.width:
                lines.append(f"  {part}")
            else:
                lines[-1] = longer
        return "\n".join(lines)


def wants_colour(choice: str, environ: Mapping[str, str], is_terminal: bool) -> bool:
    """``--color`` decides; else NO_COLOR and TERM=dumb say no, FORCE_COLOR or a terminal yes."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return is_terminal or environ.get("FORCE_COLOR", "0") not in ("", "0")


def of_stdout(
    *, choice: str, environ: Mapping[str, str], headers: bool, wide: bool, exact: bool
) -> Style:
    """The style for the process's stdout as it is now."""
    out = sys.stdout
    terminal = out is not None and out.isatty()
    width = None
    if terminal:
        import shutil  # 2 ms that a pipe does not pay

        width = shutil.get_terminal_size().columns
    encoding = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "")
    # Python writes UTF-8 in the C locale; whoever asked for that locale wants ASCII
    asked = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG")
    utf8 = encoding == "utf8" and asked not in ("C", "POSIX")
    return Style(
        width=width,
        colour=wants_colour(choice, environ, terminal),
        redraw=terminal and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR"),
        ellipsis="…" if utf8 else "~",
        dot="·" if utf8 else "-",
        headers=headers,
        wide=wide,
        exact=exact,
    )
