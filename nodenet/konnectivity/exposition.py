"""Prometheus' text format, for metrics whose names another program has chosen.

prometheus-client renames counters that do not end in ``_total``; upstream has several.
Source: Prometheus: docs/instrumenting/exposition_formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def gauge(name: str, help: str, value: float) -> str:
    """A gauge without labels."""
    return family(name, "gauge", help, [({}, value)])


def family(name: str, kind: str, help: str, samples: Iterable[tuple[Labels, float]]) -> str:
    """One metric with its help, also when it has no sample yet."""
    lines = [_head(name, kind, help)]
    lines += [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    return "".join(lines)


def histogram(
    name: str,
    help: str,
    bounds: Sequence[float],
    samples: Iterable[tuple[Labels, Sequence[int], float]],
) -> str:
    """Of each sample the labels, the counts of each bucket and of what is above, and the sum."""
    lines = [_head(name, "histogram", help)]
    for labels, counts, total in samples:
        running = 0
        for bound, count in zip([*map(_number, bounds), "+Inf"], counts, strict=True):
            running += count
            lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {running}\n")
        lines.append(f"{name}_sum{_labels(labels)} {_number(total)}\n")
        lines.append(f"{name}_count{_labels(labels)} {running}\n")
    return "".join(lines)


def _head(name: str, kind: str, help: str) -> str:
    told = help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
    return f"{{{inner}}}"


def _number(value: float) -> str:
    """As Go prints it where the tests of upstream compare text: ``3``, ``0.005``, ``1e-06``."""
    if isinstance(value, int) or value.is_integer():
        return str(int(value)) if abs(value) < 1e15 else repr(float(value))
    return repr(value)
