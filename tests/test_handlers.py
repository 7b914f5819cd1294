"""Settings become instances; what is wrong is named with its place."""

from __future__ import annotations

import decimal
from typing import Any

import pytest

from django_outbox_lock import handlers
from django_outbox_lock.exceptions import InvalidSettings

PATH = "OUTBOX_LOCK['default']['LOCK']"


class Base:
    def __init__(self, alias: str, *, lease: float = 60, namespace: str = "") -> None:
        if lease <= 0:
            raise ValueError(f"lease must be above 0, not {lease}.")
        self.said = (alias, lease, namespace)


class Child(Base):
    def __init__(self, alias: str, *, schema: str = "public", **options: Any) -> None:
        super().__init__(alias, **options)
        self.schema = schema


class Grandchild(Child):
    pass


class Foreign:
    """As people write it: arguments that may be given by place or by name."""

    def __init__(self, alias: str, url: str, timeout: float = 3) -> None:
        self.said = (alias, url, timeout)


def test_a_class_is_loaded_by_its_path() -> None:
    assert handlers.load(PATH, "decimal.Decimal", decimal.Decimal) is decimal.Decimal


@pytest.mark.parametrize(
    ("dotted", "words"),
    [
        ("nowhere.Backend", r"\['LOCK'\]\['BACKEND'\]: No module named 'nowhere'"),
        ("Backend", r"\['LOCK'\]\['BACKEND'\]: Backend doesn't look like a module path"),
        ("decimal.Nothing", r"\['LOCK'\]\['BACKEND'\]: Module \"decimal\" does not define"),
        ("decimal.Context", r"\['LOCK'\]\['BACKEND'\]: decimal.Context is no Decimal"),
        ("decimal.getcontext", r"\['LOCK'\]\['BACKEND'\]: decimal.getcontext is no Decimal"),
    ],
)
def test_a_wrong_path_is_named(dotted: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        handlers.load(PATH, dotted, decimal.Decimal)


def test_options_become_keyword_arguments() -> None:
    made = handlers.construct(Child, {"schema": "s", "lease": 5}, PATH, "default")
    assert (made.schema, made.said) == ("s", ("default", 5, ""))
    foreign = handlers.construct(Foreign, {"url": "u"}, PATH, "default")
    assert foreign.said == ("default", "u", 3)


def test_the_options_of_a_class_are_its_own_and_its_bases() -> None:
    assert handlers.option_names(Grandchild, 1) == ["schema", "lease", "namespace"]
    assert handlers.option_names(Foreign, 1) == ["url", "timeout"]
    assert handlers.option_names(object) == []


def test_an_unknown_option_is_named_with_the_nearest_known() -> None:
    words = r"^OUTBOX_LOCK\['default'\]\['LOCK'\]\['leese'\] is not known. Did you mean 'lease'\?"
    with pytest.raises(InvalidSettings, match=words):
        handlers.construct(Child, {"leese": 5}, PATH, "default")


def test_an_option_unlike_any_is_named_with_all_known() -> None:
    with pytest.raises(InvalidSettings, match="Known are schema, lease, namespace"):
        handlers.construct(Child, {"zzz": 5}, PATH, "default")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"lease": 0}, "lease must be above 0, not 0"), ({"lease": "5"}, "not supported between")],
)
def test_a_value_that_the_class_refuses_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"^OUTBOX_LOCK\['default'\]\['LOCK'\]: .*{words}"):
        handlers.construct(Child, options, PATH, "default")


def test_an_option_that_is_needed_is_named() -> None:
    with pytest.raises(InvalidSettings, match="'url'"):
        handlers.construct(Foreign, {}, PATH, "default")
