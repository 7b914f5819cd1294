"""Hands the messages of a plan to their publishers and notes what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_outbox_lock.engines.items import BrokeTransport
from django_outbox_lock.errortext import clean, describe, text_of
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.backends.publishers.base import BasePublisher
    from django_outbox_lock.engines.circuits import Circuits
    from django_outbox_lock.engines.courier import Call, Courier
    from django_outbox_lock.engines.items import Chain, Item, Part, Plan
    from django_outbox_lock.engines.routing import Routing

# Ten years in seconds: far below the due times that mean "parked".
LONGEST_DELAY = 10 * 366 * 86400.0

TIMED_OUT = "Timed out: the publisher gave no answer within send_timeout."


@dataclass(frozen=True, slots=True)
class Limits:
    """When a page stops: ``stopping`` tells of a request, ``until`` is a monotonic time."""

    handle: LockHandle
    stopping: Callable[[], bool]
    until: float

    def reached(self) -> bool:
        """Whether nothing more may be sent."""
        return self.handle.lost or self.stopping() or time.monotonic() >= self.until

    def ask(self, publisher: BasePublisher) -> Callable[[], bool]:
        """The question for a call in progress, which is also its sign of progress.

        A publisher that sends ahead finishes its wave: what it has in flight would be sent twice.
        """
        stops = self.reached if publisher.one_by_one else lambda: self.handle.lost

        def ask() -> bool:
            self.handle.progress()
            return stops()

        return ask


class Delivery:
    """Delivers the parts of a page, one publisher after the other."""

    def __init__(
        self, routing: Routing, circuits: Circuits, courier: Courier, limits: Limits
    ) -> None:
        self._routing = routing
        self._circuits = circuits
        self._courier = courier
        self._limits = limits

    def deliver(self, plan: Plan) -> None:
        """Give each message of the plan its outcome, as far as it is tried."""
        for part in plan.parts.values():
            if self._probe(part):
                self._send_waves(part)

    def _probe(self, part: Part) -> bool:
        """Send each probe alone; False when the part has ended."""
        for chain in part.probes:
            item = chain.upcoming()
            if item is not None and not self._send(part, [item], alone=True):
                return False
        return True

    def _send_waves(self, part: Part) -> None:
        while wave := list(self._wave(part)):
            size = self._routing[part.name].max_batch or len(wave)
            for start in range(0, len(wave), size):
                if not self._send(part, wave[start : start + size]):
                    return

    def _wave(self, part: Part) -> Iterator[Item]:
        ordered = self._routing[part.name].preserves_order
        for chain in part.chains:
            if not self._circuits.closed(chain.topic):
                continue
            if ordered:
                yield from chain.sendable()
            elif (item := chain.upcoming()) is not None:
                yield item

    def _send(self, part: Part, items: Sequence[Item], *, alone: bool = False) -> bool:
        """Send the items in one call; False when the part has ended."""
        if self._limits.reached():
            return False
        call = self._call(part, items)
        # Not by counting: a call that was given up may still bring outcomes, too late.
        rest = [item for item in items if item.outcome is None]
        return not rest or (not call.stopped and self._undecided(part, call, rest, alone=alone))

    def _undecided(self, part: Part, call: Call, rest: Sequence[Item], *, alone: bool) -> bool:
        """What the call gave no outcome for; False when the part has ended."""
        if call.timed_out:
            self._timed_out(part, rest[0])
        elif isinstance(call.error, TransportDown):
            self._transport_down(part, call.error, rest[0] if alone else None)
        elif call.size == 1:
            return self._decide(rest[0], _blame(call.error))
        else:
            return self._one_by_one(part, rest)
        return False

    def _one_by_one(self, part: Part, items: Sequence[Item]) -> bool:
        """After an error that blames nobody: what fails alone is to blame."""
        return all(item.chain.blocked or self._send(part, [item]) for item in items)

    def _call(self, part: Part, items: Sequence[Item]) -> Call:
        publisher = self._routing[part.name]
        envelopes = [item.envelope for item in items if item.envelope is not None]
        call = self._courier.carry(publisher, envelopes, self._limits.ask(publisher))
        for item, outcome in zip(items, list(call.outcomes), strict=False):
            self._decide(item, outcome)
            if isinstance(item.outcome, Sent | Rejected):
                self._routing.carried(part.name)
        return call

    def _decide(self, item: Item, outcome: object) -> bool:
        """Note an outcome; the part goes on."""
        behind = item.chain.blocked
        item.outcome = _checked(outcome)
        if not behind:  # else it was not its turn, and says nothing about the topic
            self._circuits.note(item, item.outcome)
        return True

    def _timed_out(self, part: Part, item: Item) -> None:
        """The first message without an answer is to blame; its topic waits, the others go on."""
        self._routing.replace(part.name)
        self._decide(item, Retry(TIMED_OUT))
        self._circuits.trip(item.row.topic, TIMED_OUT)

    def _transport_down(self, part: Part, error: TransportDown, probe: Item | None) -> None:
        """Nobody is to blame, except for a probe, which was alone.

        And even a probe only if the transport has carried others since the last one failed: in an
        outage it would fail whatever it is.
        """
        words = clean(text_of(error)) or "The transport is down."
        if probe is not None:
            if self._routing.has_carried(part.name):
                probe.outcome = BrokeTransport(words)
            self._circuits.trip(probe.row.topic, words)
        for topic in {chain.topic for chain in part.all() if _untried(chain)}:
            self._circuits.put_off(topic, words)


def _untried(chain: Chain) -> bool:
    return any(item.outcome is None for item in chain.items)


def _blame(error: BaseException | None) -> Outcome:
    if error is None:
        return Retry("The publisher gave no outcome for this message.")
    # Whoever raises an outcome means it, as in a handler.
    return error if isinstance(error, Outcome) else Retry(describe(error))


def _checked(outcome: object) -> Outcome:
    """What a publisher gave, made fit for the row."""
    if isinstance(outcome, Rejected):
        return Rejected(clean(text_of(outcome.reason)))
    if isinstance(outcome, Retry):
        return _checked_retry(text_of(outcome.reason), outcome.after)
    if isinstance(outcome, Sent):
        return outcome
    return Retry(clean(f"The publisher gave {outcome!r} instead of an outcome."))


def _checked_retry(reason: str, after: object) -> Retry:
    """A handler's mistake must not end the process: its message would come back for ever."""
    seconds = _seconds(after)
    if after is not None and seconds is None:
        reason += f" (after={after!r} is no number of seconds)"
    return Retry(clean(reason), seconds)


def _seconds(after: object) -> float | None:
    if isinstance(after, int | float) and not isinstance(after, bool) and after <= LONGEST_DELAY:
        return float(max(0, after))
    return None
