"""``manage.py outbox``: what operators see of the locks, and what they can do to them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_outbox_lock import LockLost, fence
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.locking import locks
from django_outbox_lock.management.commands import _locks, _tables
from django_outbox_lock.management.commands.outbox import VERBS
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.commands.conftest import RunUnread

pytestmark = pytest.mark.django_db(transaction=True)


class Bucketless(MemoryLock):
    """A backend whose store lacks something."""

    made: list[str] = []

    def provision(self) -> str:
        self.made.append("bucket")
        return "The bucket was made."

    def missing(self) -> str | None:
        return None if self.made else "there is no bucket"


@pytest.fixture
def held() -> Iterator[LockHandle]:
    handle = locks["default"].obtain("nightly-report")
    assert handle is not None
    yield handle
    handle.release()


def outbox(*arguments: str) -> str:
    stdout = io.StringIO()
    call_command("outbox", *arguments, stdout=stdout)
    return stdout.getvalue()


def test_lists_who_holds_what(held: LockHandle) -> None:
    free = locks["default"].obtain("a-free-one")
    assert free is not None
    free.release()
    heading, first, second = outbox("locks").splitlines()
    assert heading.split() == list(_tables.HEADINGS)
    assert first.split()[:4] == ["a-free-one", "free", "1", "last:"]
    assert second.split()[:3] == ["nightly-report", "held", str(held.token)]
    assert held.backend.label in second


def test_lists_for_programs(held: LockHandle) -> None:
    (row,) = json.loads(outbox("locks", "--json"))
    assert (row["resource"], row["state"]) == ("nightly-report", "held")
    assert (row["token"], row["lock_id"]) == (held.token, held.lock_id)


def test_watches_until_it_is_interrupted(held: LockHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"{_locks.__name__}.time.sleep", sleep)
    assert outbox("locks", "--watch", "0.5").count("RESOURCE") == 2
    assert pauses == [0.5, 0.5]


def test_releases_the_holder_that_was_listed(held: LockHandle) -> None:
    told = outbox("locks", "--release", "nightly-report", "--token", str(held.token))
    assert told == f"nightly-report: the holder with token {held.token} was ended.\n"
    assert Lock.objects.get().owner is None
    assert "command line" in Lock.objects.get().forced_by
    with pytest.raises(LockLost), fence.held(held.ticket, using="default"):
        pytest.fail("the old holder passed the fence")


def test_leaves_a_successor_alone(held: LockHandle) -> None:
    with pytest.raises(CommandError, match="not held under token 99 any more"):
        outbox("locks", "--release", "nightly-report", "--token", "99")
    assert locks["default"].prove(held)


def test_a_release_without_a_token_is_refused(held: LockHandle) -> None:
    with pytest.raises(CommandError, match="--release needs --token"):
        outbox("locks", "--release", "nightly-report")
    assert locks["default"].prove(held)


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_the_options_of_every_command_may_stand_on_either_side_of_the_verb(verb: str) -> None:
    parser = load_command_class("django_outbox_lock", "outbox").create_parser("manage.py", "outbox")
    own = ["--settings", "mysite.settings", "-v", "3", "--traceback"]
    before, after = parser.parse_args([*own, verb]), parser.parse_args([verb, *own])
    assert before == after
    assert (after.settings, after.verbosity, after.traceback) == ("mysite.settings", 3, True)
    assert parser.parse_args([verb]).verbosity == 1


def test_a_token_without_a_release_is_refused() -> None:
    with pytest.raises(CommandError, match="--token needs --release"):
        outbox("locks", "--token", "5")


@pytest.mark.parametrize("every", ["-1", "0", "nan", "inf", "1e12"])
def test_a_pause_for_which_nobody_can_sleep_is_refused(every: str) -> None:
    with pytest.raises(CommandError, match="argument --watch: it must be"):
        outbox("locks", "--watch", every)


def test_a_release_of_what_is_no_name_is_refused() -> None:
    with pytest.raises(CommandError, match="argument --release: resource must have 1 to 255 bytes"):
        outbox("locks", "--release", "", "--token", "1")


def test_after_a_restore_every_token_is_above_what_was_lost(held: LockHandle) -> None:
    """Invariant 4 holds for what the database keeps; a restore loses tokens that were issued."""
    assert "tokens of 1 resources were lifted" in outbox("locks", "--after-restore")
    with pytest.raises(LockLost), fence.held(held.ticket, using="default"):
        pytest.fail("a holder from before the restore passed the fence")
    assert Lock.objects.get().token == held.token + fence.LIFT


def test_provisioning_a_native_lock_needs_nothing() -> None:
    assert "needs nothing" in outbox("provision")
    assert outbox("provision", "--check") == "Nothing is missing.\n"


def test_provisions_what_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucketless, "made", [])
    settings.OUTBOX_LOCK = {"default": {"LOCK": {"BACKEND": f"{__name__}.Bucketless"}}}
    with pytest.raises(CommandError, match=r"^There is no bucket\. Run manage\.py outbox prov"):
        outbox("provision", "--check")
    assert outbox("provision") == "The bucket was made.\n"
    assert outbox("provision", "--check") == "Nothing is missing.\n"


def test_a_missing_migration_is_named() -> None:
    rows = MigrationRecorder(connection).migration_qs.filter(app="django_outbox_lock")
    kept = list(rows)
    rows.delete()
    try:
        with pytest.raises(CommandError, match="migrate django_outbox_lock --database default"):
            outbox("locks")
    finally:
        for row in kept:
            row.save(force_insert=True)


def test_wrong_settings_are_one_sentence(settings: Settings) -> None:
    wrong: dict[str, Any] = {"default": {"LOCK": {"OPTIONS": {"leese": 3}}}}
    settings.OUTBOX_LOCK = wrong
    with pytest.raises(CommandError, match=r"\['LOCK'\]\['OPTIONS'\]\['leese'\]"):
        call_command("outbox", "locks", skip_checks=True, stdout=io.StringIO())


@pytest.mark.parametrize("verb", ["status", "locks"])
def test_a_reader_that_has_read_enough_is_no_error(run_unread: RunUnread, verb: str) -> None:
    done = run_unread("outbox", verb)
    assert (done.returncode, done.stderr) == (0, "")
