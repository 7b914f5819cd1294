"""Golden values: a change of any of them lets two versions disagree on what is one thing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import uuid

import pytest

from django_outbox_lock import keys

MESSAGE_ID = uuid.UUID("018f4e5c-0000-7000-8000-0000000010a5")
ALL = """\
import uuid
from django_outbox_lock import keys
print(keys.resource_id("nightly-report"), keys.advisory_key("public", "nightly-report"),
      keys.user_lock_name("shop", "nightly-report"), keys.applock_name("dbo", "nightly-report"),
      keys.store_key("shop", "nightly-report"), keys.order_key("order.created", "42"),
      keys.topic_id("order.created"), keys.entry_hash("billing", "42"))
"""


def test_a_resource_has_one_spelling() -> None:
    assert keys.canonical_resource("cafe\u0301") == keys.canonical_resource("caf\u00e9")
    assert keys.canonical_resource("OutboxSweeper") == "OutboxSweeper"
    assert keys.canonical_resource("é" * 127) == "é" * 127


@pytest.mark.parametrize(
    ("resource", "error", "words"),
    [
        (7, TypeError, "resource must be a str, not int"),
        (b"name", TypeError, "resource must be a str, not bytes"),
        ("", ValueError, "1 to 255 bytes, not 0"),
        ("é" * 128, ValueError, "1 to 255 bytes, not 256"),
        ("a\0b", ValueError, "NUL"),
        ("\ud83d", ValueError, "surrogate"),
    ],
)
def test_a_name_that_is_none_is_refused(
    resource: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        keys.canonical_resource(resource)  # type: ignore[arg-type]


def test_registry_id() -> None:
    """The value is that of the tool sha256sum, as are the digests below."""
    assert (
        keys.resource_id("OutboxSweeper")
        == "b8454043f9070b504e48e1400f66d4a7922230792e342ad52f867bde890136ea"
    )


def test_advisory_key() -> None:
    assert keys.advisory_key("public", "OutboxSweeper") == 2522284679079445936
    assert keys.advisory_key("", "OutboxSweeper") == 5053023805390173912


def test_user_lock_name() -> None:
    name = keys.user_lock_name("shop", "Nightly Report é")
    assert name == "outbox:nightly-report:dcd15d86f4bf392aae6c8130781a01c6da5b0fcd"


def test_applock_name() -> None:
    name = keys.applock_name("dbo", "Nightly Report é")
    assert name == "ol:e3037e3ba4b813b41ffe44510c12:nightly-report"


def test_store_key() -> None:
    assert (
        keys.store_key("shop", "OutboxSweeper")
        == "e8ca2728492e7acb7469bd9fd3f4ce0990d06c0b50fd3abd7dac1023533340fa"
    )


def test_order_key() -> None:
    assert keys.order_key("order.created", "42") == 0x199DEEC6D2760A0C
    assert keys.order_key("order.created", "café") == 5890636279728948722
    assert keys.order_key("order.created", "4") != keys.order_key("order.created4", "")


def test_slot() -> None:
    assert keys.slot(-1, MESSAGE_ID) == 4095
    assert keys.slot(4097, MESSAGE_ID) == 1
    assert keys.slot(None, MESSAGE_ID) == 0xA5


def test_topic_id() -> None:
    assert (
        keys.topic_id("order.created")
        == "a9a59a2f7a3820814e5ba72aa108fe0a95a65633677a6edd5a0cc6a9e625dd27"
    )


def test_entry_hash() -> None:
    assert (
        keys.entry_hash("billing", "42")
        == "a5362349136e926a77f05bbca7b861a0b491a1cd2a8a7ee260262d83f6c47523"
    )


def test_parking_hash() -> None:
    assert keys.parking_hash(-1) == 2**48 - 1
    assert keys.parking_hash(0x199DEEC6D2760A0C) == 0xEEC6D2760A0C


@pytest.mark.parametrize("resource", ["x", "X" * 255, "é" * 127, "///", "日本語", "a-b", "Ω" * 64])
def test_names_fit_their_servers(resource: str) -> None:
    user_lock = keys.user_lock_name("shop", resource)
    assert len(user_lock) <= 64
    assert user_lock.isascii()
    assert user_lock == user_lock.lower()
    applock = keys.applock_name("dbo", resource)
    assert len(applock) <= 255
    assert applock.isascii()
    assert applock[:32] != keys.applock_name("dbo", f"{resource[:100]}!")[:32]


def test_two_hundred_thousand_names_do_not_collide() -> None:
    """Case 031: near-identical names, each a signed 64-bit key of its own."""
    names = [f"report-{number}" for number in range(100_000)]
    names += ["".join(letters) for letters in itertools.product("aAbB01-_. ", repeat=5)]
    found = {keys.advisory_key("public", name) for name in names}
    assert len(names) == len(found) == 200_000
    assert -(2**63) <= min(found) < 0 < max(found) < 2**63


def test_every_interpreter_makes_the_same_keys() -> None:
    """Case 037: nothing goes through ``hash()``, which differs from process to process."""
    said = {
        subprocess.run(
            [sys.executable, "-c", ALL],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert said.pop().strip()
