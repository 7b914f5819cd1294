"""How many rows the next page may have."""

from __future__ import annotations


class PageSize:
    """Full pages, unless the last one was cut short by its bytes or could not be recorded.

    A page that could not be recorded is followed by a page of one, so that a database that reads
    but does not write costs one message a time; from there it doubles.
    """

    def __init__(self, most: int) -> None:
        self.rows = most
        self._most = most

    def worked(self) -> None:
        """The page was recorded."""
        self.rows = min(self._most, self.rows * 2)

    def cut(self, kept: int) -> None:
        """Only so many rows fitted: the next page need not read many more of their kind."""
        self.rows = min(self._most, max(1, kept))

    def failed(self) -> None:
        """The page was sent and could not be recorded."""
        self.rows = 1
