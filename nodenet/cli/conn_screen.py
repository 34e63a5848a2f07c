"""A full terminal screen: shown and left as it was found, keys without Enter."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from types import TracebackType
from typing import Self

# alternate screen, cursor off; and back
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """A context manager; stdin and stdout must be terminals."""

    def __enter__(self) -> Self:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSADRAIN)
        self._write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
        # Ctrl-C is one of the ways to leave a screen
        return kind is KeyboardInterrupt

    @property
    def height(self) -> int:
        """Lines there are now; a resized terminal has another number."""
        return shutil.get_terminal_size().lines

    def show(self, text: str) -> None:
        """Draws over what is there, without flicker: no line is cleared before it is written."""
        lines = text.split("\n")[: self.height]
        self._write(_HOME + f"{_CLEAR_LINE}\n".join(lines) + _CLEAR_LINE + _CLEAR_REST)

    def keys(self, seconds: float) -> str:
        """What was typed, as soon as something was; nothing after ``seconds``.

        A key that sends several characters (arrows) is left out, Escape alone is not.
        """
        ready, _, _ = select.select([self._input], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(self._input, 64).decode(errors="ignore")
        if not typed:
            return "q"  # the terminal is gone
        return typed if not typed.startswith("\x1b") or typed == "\x1b" else ""

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
