"""Commands whose reader may be gone, or was never there: what they do counts, not what they say."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper


class HeardOrNot(BaseCommand):
    """A command that also works where the process was started without an output (``>&-``)."""

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        stdout, stderr = stdout or sys.stdout or _Nowhere(), stderr or sys.stderr or _Nowhere()
        super().__init__(stdout, stderr, **options)


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def silence(stream: OutputWrapper) -> None:
    """Let what is written to a file that takes no more go nowhere, at the end of Python, too."""
    # A caller may have given an object that is no file.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
