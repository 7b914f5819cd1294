"""A page sorted out: what may be sent, by whom and in which order, and what may not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django_outbox_lock.envelope import Envelope
    from django_outbox_lock.querysets.page import PageRow
    from django_outbox_lock.querysets.topics import NewHold


class Expired(Rejected):
    """The message's time has passed: it is dead, and holds nobody back."""


class BrokeTransport(Retry):
    """The message was alone on its way when the transport broke."""


@dataclass(slots=True, eq=False)
class Item:
    """A message of the page and what became of it; no outcome: it was not tried."""

    row: PageRow
    chain: Chain
    envelope: Envelope | None = None
    outcome: Outcome | None = None
    dead_reason: str = ""


@dataclass(slots=True, eq=False)
class Chain:
    """The messages of one key in their order, or a single message without a key.

    ``holds``: a dead one holds back those behind it. All before ``at`` have passed.
    """

    topic: str
    holds: bool
    items: list[Item] = field(default_factory=list)
    at: int = 0

    def passed(self, item: Item) -> bool:
        """Whether the messages behind this one may go."""
        outcome = item.outcome
        if isinstance(outcome, Rejected):
            return isinstance(outcome, Expired) or not self.holds
        return isinstance(outcome, Sent)

    @property
    def blocked(self) -> bool:
        """Whether one of them has failed and holds back the rest."""
        self._advance()
        return self.at < len(self.items) and self.items[self.at].outcome is not None

    def upcoming(self) -> Item | None:
        """The next one to be sent; None when all is decided or one of them blocks the rest."""
        return next(self.sendable(), None)

    def sendable(self) -> Iterator[Item]:
        """All that are still to be sent, up to one that blocks the rest."""
        self._advance()
        for item in itertools.islice(self.items, self.at, None):
            if item.outcome is None:
                yield item
            elif not self.passed(item):
                return

    def _advance(self) -> None:
        while self.at < len(self.items) and self.passed(self.items[self.at]):
            self.at += 1


@dataclass(slots=True)
class Part:
    """What one publisher, known by its name, has to do of a page."""

    name: str
    probes: list[Chain] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)

    def all(self) -> Iterator[Chain]:
        yield from self.probes
        yield from self.chains


@dataclass(slots=True)
class Plan:
    """A page sorted out. ``parked`` are rows with the due time at which they are parked.

    ``decided`` are chains that go to no publisher.
    """

    now: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    decided: list[Chain] = field(default_factory=list)
    parked: list[tuple[PageRow, int]] = field(default_factory=list)
    holds: dict[int, NewHold] = field(default_factory=dict)

    def part(self, name: str) -> Part:
        """The part of a publisher."""
        if name not in self.parts:
            self.parts[name] = Part(name)
        return self.parts[name]

    def chains(self) -> Iterable[Chain]:
        """All chains of the page."""
        yield from self.decided
        for part in self.parts.values():
            yield from part.all()
