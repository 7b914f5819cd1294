"""Who this process is, for the people who look at a lock."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def host() -> str:
    """The name of this machine, at most 255 characters."""
    return socket.gethostname()[:255]


def application() -> str:
    """The program and, for a management command, the command: ``manage.py runsweeper``."""
    path = Path(sys.argv[0] if sys.argv else "")
    # Started with -m: the package says more than the file does.
    program = path.parent.name if path.name == "__main__.py" else path.name or "python"
    commands = sys.argv[1:2] if program in {"manage.py", "django-admin", "django"} else []
    return " ".join([program, *commands])[:200]


def session_name(purpose: str) -> str:
    """Name under which a server lists a session of ours; PostgreSQL takes 63 bytes."""
    return f"outboxlock:{host()[:24]}:{os.getpid()}:{purpose}"[:63]
