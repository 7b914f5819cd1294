"""The checker accepts what may happen, and names what may not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.history import Acquisition, History, Write, violations

if TYPE_CHECKING:
    from pathlib import Path


def held(token: int, start: float, end: float, **more: Any) -> Acquisition:
    """An acquisition by worker "a" that was released in time."""
    given = {"worker": "a", "resource": "r", "asked": start - 0.1, "held": True, **more}
    return Acquisition(token=token, start=start, end=end, **given)


def write(number: int, token: int, worker: str = "a") -> Write:
    return Write(number=number, resource="r", token=token, worker=worker)


def test_nothing_is_right() -> None:
    assert violations(History()) == []


def test_a_history_without_a_fault() -> None:
    history = History(
        [held(1, 1, 2, seen=0), held(2, 3, 4, seen=2), held(5, 5, 6, seen=2)],
        [write(1, 1), write(2, 1), write(7, 5)],
        acknowledged=[1, 7],
    )
    assert violations(history) == []


def test_a_stale_holder_beside_its_successor_is_right_if_it_wrote_before() -> None:
    """It stood still and was told at its release; its writes were accepted before the bump."""
    stale = held(1, 1, 9, held=False, seen=0, losses=1)
    history = History([stale, held(2, 3, 4, seen=1)], [write(1, 1), write(2, 2)])
    assert violations(history) == []


def test_resources_do_not_matter_to_each_other() -> None:
    other = Write(number=3, resource="s", token=1, worker="a")
    history = History(
        [held(1, 1, 9), held(2, 10, 11), held(1, 1, 9, resource="s")],
        [write(1, 1), write(2, 2), other],
    )
    assert violations(history) == []


def test_two_that_asked_at_once_may_be_told_in_any_order() -> None:
    """The first to be issued a token may be the last to hear of it."""
    history = History([held(1, 5, 6, asked=1, held=False), held(2, 3, 4, asked=1)])
    assert violations(history) == []


@pytest.mark.parametrize(
    ("acquisitions", "writes", "what"),
    [
        ([held(1, 1, 2), held(1, 3, 4)], [], "token 1 was issued 2 times"),
        ([held(2, 1, 2), held(1, 3, 4)], [], "token 1 was issued after 2"),
        ([held(1, 1, 4), held(2, 3, 5)], [], "tokens 1 and 2 were held at the same time"),
        ([held(1, 1, 2, losses=2)], [], "the loss of token 1 was told 2 times"),
        (
            [held(1, 1, 9, held=False), held(2, 3, 4)],
            [write(1, 2), write(2, 1)],
            "write 2 of token 1 came after one of token 2",
        ),
        (
            [held(1, 1, 9, held=False, seen=0), held(2, 3, 4, seen=0)],
            [write(1, 1)],
            "write 1 of token 1 came after a newer holder's bump",
        ),
        (
            [held(1, 1, 2, seen=0), held(2, 3, 4, seen=9), held(3, 5, 6, seen=3)],
            [write(4, 1)],
            "write 4 of token 1 came after a newer holder's bump",
        ),
        ([held(1, 1, 2)], [write(1, 1, "b")], "write 1: b never had token 1"),
    ],
)
def test_a_broken_promise_is_named(
    acquisitions: list[Acquisition], writes: list[Write], what: str
) -> None:
    assert f"r: {what}" in violations(History(acquisitions, writes))


def test_a_commit_that_is_gone() -> None:
    """The database itself has lost it."""
    assert violations(History([held(1, 1, 2)], [], [5])) == ["write 5 was committed and is gone"]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(1, 9)), max_size=8))
def test_the_quick_rule_says_what_the_slow_one_says(rows: list[tuple[int, int, int]]) -> None:
    """The search for writes after a newer bump, against its definition."""
    acquisitions = [held(token, 1, 2, seen=seen) for token, seen, _ in rows]
    writes = [write(number, token) for token, _, number in rows]
    slow = {
        each.number
        for each in writes
        for other in acquisitions
        if other.token > each.token and each.number > (other.seen or 0)
    }
    quick = violations(History(acquisitions, writes))
    told = {line.split()[2] for line in quick if "newer holder's bump" in line}
    assert told == {str(number) for number in slow}


def test_a_worker_that_was_killed_has_written_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    key = {"resource": "r", "token": 3}
    lines = [
        {"event": "obtained", **key, "asked": 1.0, "start": 2.0},
        {"event": "saw", **key, "seen": 7},
        {"event": "wrote", **key, "number": 8},
        {"event": "lost", **key},
        {"event": "released", **key, "end": 4.0, "held": False},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "obt')
    history = History()
    history.read(path)
    assert history.acknowledged == [8]
    (found,) = history.acquisitions
    assert found == Acquisition("a", "r", 3, 1.0, 2.0, seen=7, end=4.0, held=False, losses=1)
