"""Which names are one name, and which are refused."""

from __future__ import annotations

import pytest

from django_outbox_lock.testing.lock_items.base import LockItems

LONG = "n" * 255
DECOMPOSED = "cafe\u0301"
COMPOSED = "caf\u00e9"
DIFFERENT = [
    ("Order-A", "order-a"),
    ("a", "a "),
    ("cafe", COMPOSED),
    (LONG, "n" * 254),
    ("a/0", "a/1"),
    ("ß", "ss"),
]


class NameItems(LockItems):
    """Names of every kind, none of which the store may take for another one."""

    def test_different_names_are_different(self) -> None:
        """Case, trailing blanks, accents and the last of 255 characters count."""
        for one, two in DIFFERENT:
            handles = [self.obtain(one), self.obtain(two)]
            assert [handle.release() for handle in handles] == [True, True], (one, two)

    def test_one_name_in_two_spellings(self) -> None:
        """A name composed and decomposed is one name (NFC)."""
        handle = self.obtain(DECOMPOSED)
        assert handle.resource == COMPOSED
        assert self.backend.obtain(COMPOSED) is None
        assert self.backend.release(COMPOSED, handle.lock_id)

    def test_names_of_every_script(self) -> None:
        """Whatever UTF-8 can write, quotes and SQL included, is a name."""
        for name in ["東京", "🐘" * 63, 'it\'s "quoted" -- 100%s', "tab\tnewline\n", "\\"]:
            handle = self.obtain(name)
            assert self.backend.prove(handle), name
            assert handle.release(), name

    def test_wrong_names_are_refused(self) -> None:
        """Empty, too long, with NUL, with half a character, or no text: an error names it."""
        for wrong in ["", "n" * 256, "a\0b", "\ud800", None, 7]:
            with pytest.raises((TypeError, ValueError), match="resource"):
                self.backend.obtain(wrong)  # type: ignore[arg-type]
