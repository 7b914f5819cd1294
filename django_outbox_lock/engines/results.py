"""From the outcomes of a page to what is written: one record, in a form that can be repeated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from django_outbox_lock.breaker import OPEN
from django_outbox_lock.clock import SECOND
from django_outbox_lock.engines.items import BrokeTransport, Expired
from django_outbox_lock.outcomes import Rejected, Retry, Sent
from django_outbox_lock.querysets.messages import DEAD, OUTSTANDING, Change
from django_outbox_lock.querysets.parking import behind_key, behind_topic
from django_outbox_lock.querysets.topics import NewHold

if TYPE_CHECKING:
    from django_outbox_lock.breaker import Circuit
    from django_outbox_lock.engines.circuits import Circuits
    from django_outbox_lock.engines.items import Chain, Item, Plan
    from django_outbox_lock.querysets.page import PageRow
    from django_outbox_lock.retry import Backoff


@dataclass(slots=True)
class Record:
    """All that one page changes. ``heads`` are settled messages that held their key.

    ``left`` is the number of messages that were not tried and stay due.
    """

    sent: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    holds: list[NewHold] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    circuits: list[Circuit] = field(default_factory=list)
    retried: int = 0
    dead: int = 0
    parked: int = 0
    left: int = 0
    now: int = 0

    def __bool__(self) -> bool:
        return bool(self.sent or self.changes or self.circuits)

    def has_heads_elsewhere(self) -> bool:
        """Whether a new hold has a head that is not in the page: it may be settled meanwhile."""
        changed = {change.id for change in self.changes}
        return any(hold.head_id not in changed for hold in self.holds)

    def confirmed(self) -> Record:
        """Only what stays true whoever held the lock meanwhile: these were sent."""
        return Record(sent=self.sent, heads=[head for head in self.heads if head in self.sent])


class Bookkeeper:
    """Turns the outcomes of a plan into a record."""

    def __init__(self, circuits: Circuits, backoff: Backoff, max_attempts: int) -> None:
        self._circuits = circuits
        self._backoff = backoff
        self._max_attempts = max_attempts
        self._record = Record()
        self._holds: dict[int, NewHold] = {}

    def record(self, plan: Plan) -> Record:
        """What is to be written of the plan."""
        record = self._record
        record.now = plan.now
        for hold in plan.holds.values():
            self._hold(hold)
        for row, due_at in plan.parked:
            self._park(row, due_at)
        for chain in plan.chains():
            self._settle_chain(chain)
        record.circuits = self._circuits.changed()
        record.holds = list(self._holds.values())
        record.sent.sort()
        return record

    def _settle_chain(self, chain: Chain) -> None:
        """Up to the first that blocks: settle; it is the head of the rest, which is parked."""
        blocked = False
        for item in chain.items:
            if isinstance(item.outcome, Sent):
                self._sent(item)
            elif blocked:
                self._park(item.row, behind_key(item.row.order_key or 0))
            elif item.outcome is None:
                self._untried(item)
            else:
                blocked = self._failed(item, chain)

    def _sent(self, item: Item) -> None:
        self._record.sent.append(item.row.id)
        self._lets_go(item.row)

    def _untried(self, item: Item) -> None:
        """Leave it as it is, unless its topic is to wait."""
        circuit = self._circuits.get(item.row.topic)
        if circuit is not None and circuit.breaker == OPEN:
            self._park(item.row, behind_topic(item.row.topic))
        else:
            self._record.left += 1

    def _failed(self, item: Item, chain: Chain) -> bool:
        """Write a failure; tells whether the message holds back the rest of its key."""
        change = self._change(item)
        self._record.changes.append(change)
        if change.state == DEAD:
            self._record.dead += 1
            if isinstance(item.outcome, Expired) or not chain.holds:
                self._lets_go(item.row)
                return False
        else:
            self._record.retried += 1
        self._head(item.row, change)
        return item.row.order_key is not None

    def _change(self, item: Item) -> Change:
        row, outcome = item.row, item.outcome
        if isinstance(outcome, Rejected):
            tried = row.attempts + (item.envelope is not None)
            return _dead(row, tried, outcome.reason, item.dead_reason or "rejected")
        assert isinstance(outcome, Retry)
        tried = row.attempts + 1
        broke = isinstance(outcome, BrokeTransport)
        if tried >= self._max_attempts:
            reason = "breaks the transport" if broke else _failed(tried)
            return _dead(row, tried, outcome.reason, reason)
        again = Change(row.id, row.attempts, OUTSTANDING, tried, error=outcome.reason)
        if broke:
            return replace(again, due_at=behind_topic(row.topic))
        delay = self._backoff.delay(tried) if outcome.after is None else outcome.after
        return replace(again, due_in=max(0, int(delay * SECOND)))

    def _head(self, row: PageRow, change: Change) -> None:
        if row.order_key is not None and row.held_by != row.id:
            reason = change.dead_reason or change.error or ""
            self._hold(NewHold(row.order_key, row.id, reason, row.later_head(row.id)))

    def _hold(self, hold: NewHold) -> None:
        """The earliest head of a key holds it."""
        known = self._holds.setdefault(hold.order_key, hold)
        if hold.head_id < known.head_id:
            self._holds[hold.order_key] = hold

    def _lets_go(self, row: PageRow) -> None:
        if row.held_by == row.id:
            self._record.heads.append(row.id)

    def _park(self, row: PageRow, due_at: int) -> None:
        self._record.parked += 1
        change = Change(row.id, row.attempts, OUTSTANDING, row.attempts, due_at=due_at)
        self._record.changes.append(change)


def _failed(attempts: int) -> str:
    return "1 attempt failed" if attempts == 1 else f"{attempts} attempts failed"


def _dead(row: PageRow, attempts: int, error: str, reason: str) -> Change:
    return Change(row.id, row.attempts, DEAD, attempts, error=error, dead_reason=reason)
