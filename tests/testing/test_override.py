"""``override_outbox``: sections of the settings replaced for one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.test import SimpleTestCase, TestCase

from django_outbox_lock import conf, lock, locks, single_instance
from django_outbox_lock.exceptions import InvalidAlias, InvalidSettings
from django_outbox_lock.testing import override_outbox

if TYPE_CHECKING:
    from pytest_django import Settings

IN_MEMORY = "django_outbox_lock.backends.locks.memory.MemoryLock"


def sweeper() -> conf.Options:
    return conf.outbox_settings("default").sweeper.options


def archiver() -> conf.Options:
    return conf.outbox_settings("default").archiver.options


@pytest.fixture(autouse=True)
def given(settings: Settings) -> None:
    settings.OUTBOX_LOCK = {
        "default": {"SWEEPER": {"batch_size": 7}, "ARCHIVER": {"minimum_age": 3}}
    }


def test_named_sections_are_replaced_whole_and_the_others_stay() -> None:
    with override_outbox(SWEEPER={"interval": 1}):
        assert sweeper() == {"interval": 1}
        assert archiver() == {"minimum_age": 3}
    assert sweeper() == {"batch_size": 7}


def test_blocks_may_be_nested() -> None:
    with override_outbox(SWEEPER={"interval": 1}), override_outbox(ARCHIVER={}):
        assert (sweeper(), archiver()) == ({"interval": 1}, {})


@override_outbox(SWEEPER={"interval": 2})
def test_it_decorates_a_function() -> None:
    assert sweeper() == {"interval": 2}


@override_outbox(SWEEPER={"interval": 3})
class ADecoratedClass(SimpleTestCase):
    @override_outbox(ARCHIVER={})
    def test_it_decorates_a_class_and_its_methods(self) -> None:
        assert sweeper() == {"interval": 3}
        assert archiver() == {}


def test_an_alias_gets_an_outbox() -> None:
    with override_outbox("other", SWEEPER={"interval": 1}):
        assert conf.outbox_aliases() == ("default", "other")
    with pytest.raises(InvalidAlias):
        conf.outbox_settings("other")


def test_the_default_outbox_stays_where_nothing_was_set(settings: Settings) -> None:
    del settings.OUTBOX_LOCK
    with override_outbox("other"):
        assert conf.outbox_aliases() == ("default", "other")


def test_a_wrong_key_is_named_and_leaves_the_settings_as_they_were() -> None:
    wrong = r"OUTBOX_LOCK\['default'\]\['SWEEPR'\] is not known. Did you mean 'SWEEPER'"
    with pytest.raises(InvalidSettings, match=wrong), override_outbox(SWEEPR={}):
        pytest.fail("the block was entered")
    assert sweeper() == {"batch_size": 7}


@pytest.mark.django_db
def test_what_the_lock_of_the_block_holds_ends_with_it() -> None:
    with override_outbox(LOCK={"BACKEND": IN_MEMORY}):
        inside = locks["default"]
        handle = inside.obtain("report")
        assert handle is not None
        assert inside.label == "memory"
    assert handle.ended
    assert locks["default"] is not inside


@pytest.mark.django_db
def test_another_section_leaves_the_locks_alone() -> None:
    with override_outbox(LOCK={"BACKEND": IN_MEMORY}):
        before = locks["default"]
        with override_outbox(SWEEPER={}):
            assert locks["default"] is before
        assert locks["default"] is before


@single_instance("nightly-report")
def nightly_report() -> str:
    return "done"


@override_outbox(LOCK={"BACKEND": IN_MEMORY})
class TheNightlyReport(TestCase):
    """A recipe of the documentation."""

    def test_it_is_passed_over_while_another_one_runs(self) -> None:
        with lock("nightly-report"):
            assert nightly_report() is None
        assert nightly_report() == "done"
