"""What the workers of a chaos run have written down, and whether it could have happened.

Times are monotonic seconds, the same for all processes of a machine. The order of writes is that of
their commits: each took its number inside its fenced transaction, after the fence.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

T = TypeVar("T", "Acquisition", "Write")


@dataclass
class Acquisition:
    """One *obtain* that succeeded.

    ``asked`` is before the call and ``start`` after it. ``seen`` is the number of the last write
    accepted for the resource, read after the obtain. ``end`` is before the release, and ``held``
    what the release has told; both are None if it never came to that. ``losses``: how often the
    loss was signalled.
    """

    worker: str
    resource: str
    token: int
    asked: float
    start: float
    seen: int | None = None
    end: float | None = None
    held: bool | None = None
    losses: int = 0


@dataclass(frozen=True)
class Write:
    """One write that was accepted, as the database has it."""

    number: int
    resource: str
    token: int
    worker: str


@dataclass
class History:
    """Everything about one run; ``acknowledged`` are the numbers whose commit a worker has seen."""

    acquisitions: list[Acquisition] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Add what one worker wrote; the end of a line may be missing, if it was killed."""
        lines = path.read_text(encoding="utf-8").split("\n")
        for line in lines[:-1]:
            self._add(path.stem, json.loads(line))

    def _add(self, worker: str, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "obtained":
            self.acquisitions.append(Acquisition(worker=worker, **event))
        elif kind == "wrote":
            self.acknowledged.append(event["number"])
        else:
            self._amend(worker, kind, event)

    def _amend(self, worker: str, kind: str, event: dict[str, Any]) -> None:
        resource, token = event.pop("resource"), event.pop("token")
        found = next(
            each
            for each in reversed(self.acquisitions)
            if (each.worker, each.resource, each.token) == (worker, resource, token)
        )
        if kind == "lost":
            found.losses += 1
        for name, value in event.items():
            setattr(found, name, value)


def violations(history: History) -> list[str]:
    """Every promise that the history breaks, a sentence each; empty when there is none."""
    found: list[str] = []
    acquisitions = _by_resource(history.acquisitions)
    writes = _by_resource(history.writes)
    for resource in sorted(acquisitions.keys() | writes.keys()):
        own, written = acquisitions[resource], writes[resource]
        for late in (_out_of_order, _after_a_newer_bump, _of_nobody):
            found += [f"{resource}: {what}" for what in late(own, written)]
        for rule in (_repeated, _went_back, _overlapping, _told_twice):
            found += [f"{resource}: {what}" for what in rule(own)]
    return found + list(_vanished(history))


def _by_resource(items: Iterable[T]) -> defaultdict[str, list[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for item in items:
        found[item.resource].append(item)
    return found


def _repeated(acquisitions: list[Acquisition]) -> Iterator[str]:
    counted = Counter(each.token for each in acquisitions)
    return (f"token {token} was issued {n} times" for token, n in counted.items() if n > 1)


def _went_back(acquisitions: list[Acquisition]) -> Iterator[str]:
    """Who asked after another one had obtained must have a higher token."""
    finished = sorted(acquisitions, key=lambda each: each.start)
    position = highest = 0
    for later in sorted(acquisitions, key=lambda each: each.asked):
        while position < len(finished) and finished[position].start < later.asked:
            highest = max(highest, finished[position].token)
            position += 1
        if later.token <= highest:
            yield f"token {later.token} was issued after {highest}"


def _overlapping(acquisitions: list[Acquisition]) -> Iterator[str]:
    """Who still held when it released had nobody beside it."""
    kept = [each for each in acquisitions if each.held and each.end is not None]
    for before, after in pairwise(sorted(kept, key=lambda each: each.start)):
        if before.end is not None and after.start < before.end:
            yield f"tokens {before.token} and {after.token} were held at the same time"


def _told_twice(acquisitions: list[Acquisition]) -> Iterator[str]:
    for each in acquisitions:
        if each.losses > 1:
            yield f"the loss of token {each.token} was told {each.losses} times"


def _out_of_order(acquisitions: list[Acquisition], writes: list[Write]) -> Iterator[str]:
    """A write of an old token after one of a newer token."""
    highest = 0
    for write in sorted(writes, key=lambda each: each.number):
        if write.token < highest:
            yield f"write {write.number} of token {write.token} came after one of token {highest}"
        highest = max(highest, write.token)


def _after_a_newer_bump(acquisitions: list[Acquisition], writes: list[Write]) -> Iterator[str]:
    """A write of an old token that a newer holder did not find there when it began."""
    newest_first = sorted(
        ((each.token, each.seen) for each in acquisitions if each.seen is not None), reverse=True
    )
    tokens: list[int] = []
    least: list[int] = []
    for token, seen in newest_first:
        tokens.append(-token)
        least.append(min(seen, least[-1]) if least else seen)
    for write in writes:
        newer = bisect_right(tokens, -write.token - 1)
        if newer and write.number > least[newer - 1]:
            yield f"write {write.number} of token {write.token} came after a newer holder's bump"


def _of_nobody(acquisitions: list[Acquisition], writes: list[Write]) -> Iterator[str]:
    known = {(each.worker, each.token) for each in acquisitions}
    for write in writes:
        if (write.worker, write.token) not in known:
            yield f"write {write.number}: {write.worker} never had token {write.token}"


def _vanished(history: History) -> Iterator[str]:
    there = {write.number for write in history.writes}
    for number in history.acknowledged:
        if number not in there:
            yield f"write {number} was committed and is gone"
