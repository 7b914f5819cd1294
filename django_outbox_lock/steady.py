"""The clock that only goes forward, by which waits and leases are measured.

Tools that freeze the time of a test replace ``time.monotonic`` as well, in the module ``time`` and
wherever a module has taken it from there, but not in a class. With theirs a wait would never end,
and a lock that is held would be lost when the time jumps.
"""

from __future__ import annotations

import time as _time


class time:  # noqa: N801 (in place of the module)
    """What this package takes from the module ``time``, as it was when Python had loaded it."""

    monotonic = staticmethod(_time.monotonic)
    sleep = staticmethod(_time.sleep)
