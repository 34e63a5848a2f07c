"""Reading ``iptables-save`` and writing what ``iptables-restore --noflush`` needs to get elsewhere.

Pure. Rules are compared by their options, not as text: versions of iptables differ in order,
quoting and in the matches (``-m tcp``) they name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Final
