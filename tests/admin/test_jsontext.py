"""Case 107, 139: JSON is laid out, never rewritten."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from django_outbox_lock.admin.jsontext import is_json, laid_out

TEXTS = [
    '{"id":9007199254740993,"n":' + "1" + "0" * 40 + ',"f":0.1,"e":1E400,"z":-0.0}',
    '{"a":[],"b":{},"c":[[1,2],{"d":null}],"":true}',
    r'{"quoted":"a, b: {\"c\"} [\\","u":"\u00e9\ud83d\ude00"}',
    '{"twice":1,"twice":2}',
    "null",
    '"text"',
    "0",
    "[]",
    "{}",
    " [ 1 ,\n2 ] ",
]


def read(text: str) -> Any:
    """What stands in the text: numbers as their digits, repeated names as they are."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)


@pytest.mark.parametrize("text", TEXTS)
def test_only_white_space_outside_of_strings_changes(text: str) -> None:
    def without_spaces(some: str) -> list[str]:
        return re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]', some)

    assert without_spaces(laid_out(text)) == without_spaces(text)
    assert read(laid_out(text)) == read(text)


def test_each_member_and_item_has_a_line() -> None:
    assert laid_out('{"a":[1,{"b":2}],"c":{}}').splitlines() == [
        "{",
        '  "a": [',
        "    1,",
        "    {",
        '      "b": 2',
        "    }",
        "  ],",
        '  "c": {}',
        "}",
    ]


def test_the_beginning_of_a_text_will_do() -> None:
    assert laid_out('{"a":"b","c":"half of a te').splitlines() == [
        "{",
        '  "a": "b",',
        '  "c": "half of a te',
    ]


def test_depth_does_not_blow_up_the_page() -> None:
    assert len(laid_out("[" * 5000 + "]" * 5000)) < 10_000 * 100


def test_what_is_no_json_is_told() -> None:
    assert is_json("[" + "9" * 10_000 + "]")
    assert not is_json("[1,")
    assert not is_json("[" * 100_000)
