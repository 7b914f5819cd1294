"""JSON laid out for reading without being read: every digit and escape stays as it is stored.

Parsing and writing again would pass numbers through float, merge repeated names and re-quote
text; here only white space outside of strings changes.
"""

from __future__ import annotations

import json
import re

INDENT = "  "
_DEEPEST = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")


def is_json(text: str) -> bool:
    """Whether the text is JSON; numbers are not converted, however long they are."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def laid_out(text: str) -> str:
    """The text with a line for each member and item; the beginning of a JSON text will do."""
    lines: list[str] = [""]
    depth = 0
    before = ""
    for part in _TOKEN.findall(text):
        if part in _CLOSING:
            depth -= 1
            if before not in _OPENING:
                lines.append(_margin(depth))
        elif before in _OPENING or before == ",":
            lines.append(_margin(depth))
        lines[-1] += f"{part} " if part == ":" else part
        depth += part in _OPENING
        before = part
    return "\n".join(lines)


def _margin(depth: int) -> str:
    return INDENT * min(max(depth, 0), _DEEPEST)
