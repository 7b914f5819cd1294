"""All measurements: ``python -m benchmarks``."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "benchmarks.drain",
    "benchmarks.locks",
    "benchmarks.peers",
    "benchmarks.failover",
    "benchmarks.publishers",
)


def main() -> int:
    """Each in a process of its own, for each sets Django up for a server of its own."""
    return max(subprocess.call([sys.executable, "-m", module, *sys.argv[1:]]) for module in MODULES)


if __name__ == "__main__":
    sys.exit(main())
