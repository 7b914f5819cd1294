#!/usr/bin/env python3
"""Everything that a newcomer runs, by one name: python3 scripts/dev.py COMMAND.

Needs Python 3.11 or newer and nothing else: each command first sets up what it lacks, in .dev/.
This file alone keeps to the syntax of Python 3.6, so that an old interpreter can read it and say
what is needed; the work is done in the modules beside it.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (3, 11)
COMMANDS = {
    "demo": "the main job with real processes on SQLite; the lock's holder is killed on the way",
    "serve": "the admin, on the data of the last demo",
    "test": "the suite on every server; arguments go to pytest: test --on postgresql -k lock",
    "bench": "throughput, statements per message and the cost of a lock",
    "chaos": "locks under faults, 10,000 acquisitions for each backend: chaos --backend redis",
    "lint": "style, types, import floors, migrations",
    "docs": "the documentation, warnings as errors, into .dev/docs",
}


def usage() -> str:
    lines = ["usage: python3 scripts/dev.py COMMAND [ARGUMENTS]", ""]
    lines += ["  %-6s %s" % item for item in COMMANDS.items()]
    return "\n".join(lines)


def newer_python() -> Optional[str]:
    """A new enough Python on PATH that really starts (a version manager's shim may not)."""
    for minor in range(NEEDED[1] + 8, NEEDED[1] - 1, -1):
        path = shutil.which("python3.%d" % minor)
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return path
    return None


def run_elsewhere(arguments: List[str], version: Tuple[int, int]) -> int:
    """Run with a newer Python, or say that one is needed."""
    newer = newer_python()
    if newer:
        return subprocess.call([newer, str(Path(__file__).resolve()), *arguments])
    print(
        "Python 3.11 or newer is needed; this is %d.%d. On Debian 12, Ubuntu 24.04 or later:\n"
        "  apt-get install --yes python3 python3-venv" % version,
        file=sys.stderr,
    )
    return 1


def main(arguments: List[str], version: Tuple[int, int] = sys.version_info[:2]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        print("Unknown command %r.\n\n%s" % (arguments[0], usage()), file=sys.stderr)
        return 2
    if version < NEEDED:
        return run_elsewhere(arguments, version)
    sys.path.insert(0, str(ROOT))
    from scripts import _commands

    return _commands.run(arguments[0], arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
