"""``OUTBOX_LOCK``: what is wrong is named with its full path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.test import override_settings

from django_outbox_lock import conf
from django_outbox_lock.exceptions import InvalidAlias, InvalidSettings

if TYPE_CHECKING:
    from pytest_django import Settings

WHOLE: dict[str, Any] = {
    "LOCK": {"BACKEND": "shop.Locks", "OPTIONS": {"lease": 5}},
    "PUBLISHERS": {"rabbit": {"BACKEND": "shop.Rabbit", "OPTIONS": {"url": "u"}}},
    "ROUTES": {"order.*": "rabbit"},
    "TOPICS": {"order.*": {"dead_head": "skip"}},
    "ARCHIVE": {"BACKEND": "shop.Archive"},
    "SWEEPER": {"batch_size": 10},
    "ARCHIVER": {"minimum_age": 3},
    "PUBLISH": {"max_bytes": 100},
}


def outbox(**sections: Any) -> conf.OutboxSettings:
    with override_settings(OUTBOX_LOCK={"default": sections}):
        return conf.outbox_settings("default")


@pytest.mark.parametrize("given", [{}, {"default": {}}])
def test_nothing_needs_to_be_set(settings: Settings, given: dict[str, Any]) -> None:
    settings.OUTBOX_LOCK = given
    assert conf.outbox_aliases() == ("default",)
    assert conf.outbox_settings("default") == conf.OutboxSettings(
        alias="default",
        lock=conf.BackendSettings("OUTBOX_LOCK['default']['LOCK']", None),
        publishers={},
        routes=None,
        topics={},
        archive=conf.BackendSettings("OUTBOX_LOCK['default']['ARCHIVE']", conf.DEFAULT_ARCHIVE),
        sweeper=conf.KeywordSettings("OUTBOX_LOCK['default']['SWEEPER']"),
        archiver=conf.KeywordSettings("OUTBOX_LOCK['default']['ARCHIVER']"),
        publish=conf.KeywordSettings("OUTBOX_LOCK['default']['PUBLISH']"),
    )


def test_the_setting_may_be_absent(settings: Settings) -> None:
    del settings.OUTBOX_LOCK
    assert conf.outbox_aliases() == ("default",)


def test_everything_is_read_with_its_place() -> None:
    read = outbox(**WHOLE)
    assert (read.lock.backend, read.lock.options) == ("shop.Locks", {"lease": 5})
    assert read.publishers["rabbit"] == conf.BackendSettings(
        "OUTBOX_LOCK['default']['PUBLISHERS']['rabbit']", "shop.Rabbit", {"url": "u"}
    )
    assert read.routes == {"order.*": "rabbit"}
    assert read.topics["order.*"] == conf.KeywordSettings(
        "OUTBOX_LOCK['default']['TOPICS']['order.*']", {"dead_head": "skip"}
    )
    assert (read.archive.backend, read.archive.options) == ("shop.Archive", {})
    assert read.sweeper.options == {"batch_size": 10}
    assert read.archiver.options == {"minimum_age": 3}
    assert read.publish.options == {"max_bytes": 100}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"LOKC": {}}, "['LOKC'] is not known. Did you mean 'LOCK'?"),
        ({"sweeper": {}}, "['sweeper'] is not known. Did you mean 'SWEEPER'?"),
        ({"zzz": {}}, "['zzz'] is not known. Known are ARCHIVE, ARCHIVER, LOCK, PUBLISH, "),
        ({3: {}}, " has a key that is no str: 3."),
        ({"LOCK": []}, "['LOCK'] must be a dict, not list."),
        ({"LOCK": None}, "['LOCK'] must be a dict, not NoneType."),
        ({"LOCK": {"OPTION": {}}}, "['LOCK']['OPTION'] is not known. Did you mean 'OPTIONS'?"),
        ({"LOCK": {"BACKEND": 3}}, "['LOCK']['BACKEND'] must be a dotted path, not 3."),
        ({"LOCK": {"OPTIONS": 3}}, "['LOCK']['OPTIONS'] must be a dict, not int."),
        ({"LOCK": {"OPTIONS": {3: 4}}}, "['LOCK']['OPTIONS'] has a key that is no str: 3."),
        ({"PUBLISHERS": "rabbit"}, "['PUBLISHERS'] must be a dict, not str."),
        ({"PUBLISHERS": {"a": {}}}, "['PUBLISHERS']['a']['BACKEND'] is missing."),
        (
            {"PUBLISHERS": {"a": {"BACKEND": "shop.Rabbit"}}},
            "['ROUTES'] is missing: PUBLISHERS has no 'default'.",
        ),
        ({"ROUTES": []}, "['ROUTES'] must be a dict, not list."),
        ({"ROUTES": {"*": "a"}}, "['ROUTES']['*']: PUBLISHERS has no 'a'."),
        ({"ROUTES": {"*": ["a"]}}, "['ROUTES']['*']: PUBLISHERS has no ['a']."),
        ({"TOPICS": {"*": 3}}, "['TOPICS']['*'] must be a dict, not int."),
        ({"ARCHIVE": {}}, "['ARCHIVE']['BACKEND'] is missing."),
        ({"SWEEPER": 3}, "['SWEEPER'] must be a dict, not int."),
        ({"ARCHIVER": 3}, "['ARCHIVER'] must be a dict, not int."),
        ({"PUBLISH": 3}, "['PUBLISH'] must be a dict, not int."),
    ],
)
def test_a_mistake_is_named_with_its_full_path(sections: dict[Any, Any], words: str) -> None:
    with (
        override_settings(OUTBOX_LOCK={"default": sections}),
        pytest.raises(InvalidSettings) as caught,
    ):
        conf.outbox_settings("default")
    assert str(caught.value).startswith(f"OUTBOX_LOCK['default']{words}")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "OUTBOX_LOCK must be a dict, not NoneType."),
        ({"default": None}, "OUTBOX_LOCK['default'] must be a dict, not NoneType."),
        ({"nowhere": {}}, "OUTBOX_LOCK['nowhere']: DATABASES has no alias 'nowhere'."),
        (
            {"PUBLISHERS": {"default": {"BACKEND": "shop.Rabbit"}}},
            (
                "OUTBOX_LOCK['PUBLISHERS']: the level of the database alias is missing; "
                "it belongs into OUTBOX_LOCK['default']['PUBLISHERS']."
            ),
        ),
        ({None: {}}, "OUTBOX_LOCK has a key that is no str: None."),
    ],
)
def test_a_wrong_setting_is_named(settings: Settings, given: Any, words: str) -> None:
    settings.OUTBOX_LOCK = given
    with pytest.raises(InvalidSettings) as caught:
        conf.outbox_aliases()
    assert str(caught.value) == words


def test_an_alias_without_an_outbox_is_named() -> None:
    with pytest.raises(InvalidAlias) as caught:
        conf.outbox_settings("other")
    assert str(caught.value) == (
        "The database alias 'other' has no outbox: OUTBOX_LOCK has default."
    )
    assert isinstance(caught.value, KeyError)


def test_what_was_remembered_is_forgotten_with_the_settings() -> None:
    read = conf.cached(lambda alias: conf.outbox_settings(alias).publish.options)
    assert read("default") is read("default")
    with override_settings(OUTBOX_LOCK={"default": {"PUBLISH": {"max_bytes": 1}}}):
        assert read("default") == {"max_bytes": 1}
    assert read("default") == {}


def test_debug_is_djangos(settings: Settings) -> None:
    settings.DEBUG = True
    assert conf.debug() is True
