"""The real process: signals, broken pipes, terminals, and what it imports."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nodenet.cli.root import OBJECTS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEMO = str(HERE / "demo_tree.py")
HEAVY = ("bcc", "rich", "psutil", "pyroute2", "asyncio", "uvloop", "scapy", "yaml")


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DEMO, "--as-main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **more,
    )


def imported(process: Any, *arguments: str) -> set[str]:
    """The modules in the process that ran ``nodenet ARGUMENTS``."""
    program = (
        "import sys, json; from nodenet.cli.main import main; main(sys.argv[1:]);"
        "sys.stdout.flush(); print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = process(["-c", program, *arguments])
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "version -j",
        "version",
        "completion bash",
        "_complete bash -- nodenet\tv",
        "-j c l",
    ],
)
def test_nothing_heavy_is_imported(process: Any, words: str) -> None:
    modules = imported(process, *words.split(" "))
    assert "nodenet.cli.root" in modules
    assert modules.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", [o.name for o in OBJECTS if find_spec(o.module)])
def test_no_object_s_module_imports_anything_heavy(process: Any, name: str) -> None:
    modules = imported(process, name, "--help")
    assert modules.isdisjoint(HEAVY)


def test_help_and_completion_import_no_object(process: Any) -> None:
    for words in (["--help"], ["_complete", "bash", "--", "nodenet c"]):
        modules = imported(process, *words)
        assert not {m for m in modules if re.fullmatch(r"nodenet\.(kernel|capture|conns).*", m)}
        assert modules.isdisjoint({"nodenet.cli.conn", "nodenet.cli.doctor", "msgspec"})


def test_a_broken_pipe_is_silent_and_141() -> None:
    with started("item", "flood") as child:
        assert child.stdout and child.stderr
        assert child.stdout.readline() == "event 1\n"
        child.stdout.close()
        assert child.wait(30) == 141
        assert child.stderr.read() == ""


def test_an_interrupt_ends_a_stream_with_0_and_others_with_130() -> None:
    for verb, line, status in (("flood", "event 1\n", 0), ("hang", "waiting\n", 130)):
        with started("item", verb) as child:
            assert child.stdout and child.stderr
            assert child.stdout.readline() == line
            child.send_signal(signal.SIGINT)
            child.stdout.read()
            assert child.wait(30) == status
            assert child.stderr.read() == ""


def test_a_full_disk_is_one_line(process: Any) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, DEMO, "--as-main", "item", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 1
    assert done.stderr == "nodenet: cannot write: stdout: no space left on device\n"


def as_process(process: Any, before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The entry point's own lines after some others, and one more that may not be reached."""
    program = (
        f"import sys; from nodenet.cli.main import main; {before}\n"
        "status = main(); print('returned'); sys.exit(status)"
    )
    done = process(["-c", program, *arguments], PYTHONUNBUFFERED="")
    assert isinstance(done, subprocess.CompletedProcess)
    return done


@pytest.mark.parametrize(
    ("words", "status"), [("version -j", 0), ("-j version --bogus", 2), ("-j map show nothing", 4)]
)
def test_the_process_ends_without_taking_itself_apart(
    process: Any, words: str, status: int
) -> None:
    # by an interpreter that buffers what goes into a pipe
    done = as_process(process, "", *words.split(" "))
    assert done.returncode == status
    assert set(json.loads(done.stdout)) & {"ok", "error"}
    assert done.stderr.count("\n") == (1 if status else 0)


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ("import atexit; atexit.register(print, 'the end')", ["the end"]),
        (
            "import threading; main_ = threading.main_thread();"
            "threading.Thread(target=lambda: (main_.join(), print('the end'))).start()",
            ["returned", "the end"],
        ),
        ("import cProfile; p = cProfile.Profile(); p.enable()", ["returned"]),
    ],
    ids=["atexit", "thread", "profile"],
)
def test_what_waits_for_the_end_of_the_process_is_told(
    process: Any, before: str, last: list[str]
) -> None:
    done = as_process(process, before, "version", "-j")
    assert done.returncode == 0
    answer, *after = done.stdout.splitlines()
    assert json.loads(answer)["ok"]
    assert after == last


def test_started_without_stdout(process: Any) -> None:
    done = subprocess.run(
        f"{sys.executable} -m nodenet.cli.main version >&-",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def on_a_terminal(columns: int, *arguments: str, **environ: str) -> str:
    """What a process writes to a terminal of that many columns."""
    controller, terminal = pty.openpty()
    try:
        import termios

        termios.tcsetwinsize(terminal, (24, columns))
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **environ}
        child = subprocess.Popen(
            [sys.executable, DEMO, *arguments], stdout=terminal, stderr=terminal, env=env
        )
        os.close(terminal)
        terminal = -1
        collected = b""
        while select.select([controller], [], [], 30)[0]:
            try:
                piece = os.read(controller, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not piece:
                break
            collected += piece
        assert child.wait(30) == 0
        return collected.decode().replace("\r\n", "\n")
    finally:
        os.close(controller)
        if terminal >= 0:
            os.close(terminal)


def test_80_columns_do_not_wrap() -> None:
    screen = on_a_terminal(80, "item", "list", TERM="dumb")
    assert max(map(len, screen.splitlines())) == 80
    assert "…" in screen and "[fd42:1:2:3:4:5:6:7]:40112" in screen
    assert "\x1b" not in screen


def test_colour_on_a_terminal_unless_it_is_unwanted() -> None:
    assert "\x1b[33mdegraded\x1b[0m" in on_a_terminal(120, "item", "list")
    assert "\x1b" not in on_a_terminal(120, "item", "list", NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(120, "item", "list", TERM="dumb")
    assert "\x1b" not in on_a_terminal(120, "item", "list", "--color", "never")


def test_watch_redraws_on_a_terminal() -> None:
    assert on_a_terminal(120, "item", "list", "-w", "0.1").count("\x1b[2J") == 3
    assert "\x1b" not in on_a_terminal(120, "item", "list", "-w", "0.1", TERM="dumb")


def test_no_escape_in_a_pipe_and_ascii_where_the_locale_is(process: Any) -> None:
    done = process([DEMO, "item", "list"])
    assert done.returncode == 0 and "\x1b" not in done.stdout
    ascii_only = on_a_terminal(80, "item", "list", PYTHONIOENCODING="ascii", TERM="dumb")
    assert ascii_only.isascii() and "~" in ascii_only


def test_the_json_error_of_a_real_process(process: Any) -> None:
    done = process(["-m", "nodenet.cli.main", "conn", "lits", "-j", "--bogus"])
    assert done.returncode in (1, 2)
    assert set(json.loads(done.stdout)) == {"error", "kind", "exit", "hint"}
    assert json.loads(done.stdout)["exit"] == done.returncode
    assert done.stderr.startswith("nodenet: ") and done.stderr.count("\n") == 1
