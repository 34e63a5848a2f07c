"""Becomes a command inside a pod: joins its cgroup and namespace, sees the lab's names, executes.

Two callers. `nodenet lab exec` calls `enter` and `os.execvp` in its own process, so terminal,
signals and exit code are the command's. `nodenet lab up` starts this file as a script: it waits at
the gate (one byte on standard input) until its pid is on record, so a lab that is killed while it
starts has no process it does not know about: without the byte the script ends.

Only the standard library, and little of it: this runs once a process of the lab.
"""

import ctypes
import errno
import json
import os
import sys

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWNET = 0x4000_0000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x8_0000


def enter(netns: str, cgroup: str | None, binds: dict[str, str]) -> None:
    """Moves this process (it must have one thread) into a namespace and a cgroup, for good.

    ``netns`` is the path of a network namespace, ``cgroup`` a cgroup2 directory or None. ``binds``
    maps files to what is seen in their place; the mounts are in a mount namespace of their own.
    Raises OSError.
    """
    if cgroup is not None:
        # Before anything else: a socket belongs to the cgroup its maker was in at that time.
        with open(os.path.join(cgroup, "cgroup.procs"), "w") as procs:
            procs.write("0")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(libc.setns(fd, _CLONE_NEWNET), netns)
    finally:
        os.close(fd)
    seen = {target: source for target, source in binds.items() if os.path.exists(target)}
    if seen:
        _check(libc.unshare(_CLONE_NEWNS), "mount namespace")
        # slave: what is unmounted outside goes here too, what is mounted here stays here
        _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "/")
        for target, source in seen.items():
            _check(
                libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), target
            )


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number or errno.EINVAL, os.strerror(number or errno.EINVAL), what)


def main() -> None:
    """The script: ``launch.py '{"netns": …, "cgroup": …, "binds": {…}, "argv": […]}'``.

    With ``"input": true`` standard input stays as it is behind the gate.
    """
    if not os.read(0, 1):
        raise SystemExit("launch: the lab was killed before this process was on record")
    spec = json.loads(sys.argv[1])
    if not spec.get("input"):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    os.setsid()
    os.chdir("/")
    # whatever the shell of `lab up` had open besides must not live as long as the lab
    os.closerange(3, 1 << 20)
    enter(spec["netns"], spec["cgroup"], spec["binds"])
    os.execv(spec["argv"][0], spec["argv"])


if __name__ == "__main__":
    main()
