"""The command ``nodenet``: entry point, and the contract of the modules behind its objects.

An *object* (`conn`, `map`, `lab`, ...) is one line in `nodenet.cli.root.OBJECTS` and one module
``nodenet/cli/<object>.py``, imported only when the command line names it. The module has one
public name, ``command``::

    \"\"\"nodenet conn: the connections of enrolled pods.\"\"\"

    from nodenet.cli.commands import object_group
    from nodenet.cli.globals import Globals, list_options, pass_globals
    from nodenet.cli.output import emit_list
    from nodenet.cli.tables import Column, Elide
    from nodenet.cli import numbers

    @object_group("conn", epilog="Example: nodenet conn list --sort -bytes_received")
    def command() -> None:
        \"\"\"Connections and their statistics.\"\"\"

    COLUMNS = (
        Column("ID", "id", max=16),
        Column("POD", "pod", max=32, elide=Elide.MIDDLE),
        Column("PEER", "remote", keep=True),
        Column("SENT", "bytes_sent", numbers.size, right=True),
    )

    @command.command("list")
    @list_options
    @click.option("--pod", shell_complete=complete.pods)
    @pass_globals
    def list_(g: Globals, pod: str | None) -> int | None:
        \"\"\"Open connections as a table.\"\"\"
        from nodenet.conns import reader
        emit_list(g, lambda: reader.connections(g.instance, pod), COLUMNS, row_type=Connection)

Rules for such a module:

- Import nothing heavy at module level: no ``bcc``, ``rich``, ``psutil``, ``pyroute2``,
  ``asyncio``, and no room of nodenet that does. ``click``, ``msgspec`` and ``nodenet.cli.*`` are
  fine; the rest is imported in the function that uses it. A test starts the real process and looks.
- A verb returns None (exit 0) or an exit status, and prints only through `nodenet.cli.output`:
  `emit_list`, `emit_report`, `Stream`; notices through ``g.notice``; progress through
  `nodenet.cli.progress.Steps`. So -j, -p, -o, --watch, --sort, --limit work by themselves.
- JSON rows are msgspec structs (or dictionaries) with the documented keys; 64-bit ids are strings,
  absent values None. A table only renders them.
- What goes wrong is raised: a `NodenetError` (usually `UsageError`, `NotFound`, `NotSupported`)
  with the message ``WHAT: WHERE`` and the hint ``DO``. Never print an error, never exit by hand. A
  report that says no is emitted first, then a verb returns 1 or raises the line for stderr.
- A `PermissionError` may fly: it becomes one line that names the capabilities.
- Parameter types are in `nodenet.cli.params`, dynamic completion in `nodenet.cli.complete`.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

#: What a shell reports for a process ended by SIGPIPE or SIGINT.
EXIT_PIPE = 141
EXIT_INTERRUPT = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (by default the process's) and returns its exit status.

    Never raises but for SystemExit; everything that goes wrong is one line on stderr. Does not
    return where it may end the process itself, see `_leave`.
    """
    status = _run(list(sys.argv[1:] if argv is None else argv))
    if argv is None:
        _leave(status)
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        # imported here, so that an interrupt during the imports is silent too
        from nodenet.cli import run

        return run.run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_PIPE


def _leave(status: int) -> None:
    """Ends the process, unless a thread goes on or a profiler waits for the end.

    The interpreter would take apart all it has made, object by object, before the memory goes
    anyway: 9 ms after a list of 16,000 connections. What else it does at its end is done here.
    """
    threading = sys.modules.get("threading")
    if (
        (threading is not None and threading.active_count() > 1)
        or sys.getprofile() is not None
        or sys.gettrace() is not None
    ):
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter has its own way to say so
    os._exit(status)


def _abandon_stdout() -> None:
    """Points fd 1 at nothing: the interpreter's last flush must not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
