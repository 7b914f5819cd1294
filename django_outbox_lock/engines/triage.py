"""From the rows of a page to a plan: who may go, who waits, and for what."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from django_outbox_lock.breaker import HALF_OPEN
from django_outbox_lock.codec import decode_headers
from django_outbox_lock.engines.circuits import NO_ROUTE, Circuits
from django_outbox_lock.engines.items import Chain, Expired, Item, Plan
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.errortext import describe
from django_outbox_lock.outcomes import Rejected
from django_outbox_lock.querysets.parking import behind_key, behind_topic
from django_outbox_lock.querysets.topics import NewHold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_outbox_lock.engines.reading import Page
    from django_outbox_lock.engines.routing import Policies, Routing
    from django_outbox_lock.querysets.page import PageRow

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Triage:
    """Sorts one page out; rows are taken in the order of writing, whatever made them due."""

    def __init__(self, routing: Routing, policies: Policies, circuits: Circuits) -> None:
        self._routing = routing
        self._policies = policies
        self._circuits = circuits
        self._plan = Plan()
        self._accepted: dict[int, Chain] = {}
        self._topics_of_probes: set[str] = set()

    def sort(self, page: Page) -> Plan:
        """The plan of a page, which is not empty."""
        self._plan.now = page.rows[0].now
        for row in page.rows:
            self._place(row, page)
        return self._plan

    def _place(self, row: PageRow, page: Page) -> None:
        if row.held_by is not None and row.id > row.held_by:
            self._park_behind_key(row)
        elif row.id in page.errors:
            self._place_decided(row, *_unreadable(page.errors[row.id]))
        elif (name := self._routing.name(row.topic)) is None:
            self._place_without_route(row)
        elif not self._circuits.closed(row.topic) and not self._may_probe(row):
            self._plan.parked.append((row, behind_topic(row.topic)))
        elif row.earlier is not None and row.earlier not in self._accepted:
            self._hold(row, row.earlier)
        else:
            chain = self._accept(row, name)
            chain.items.append(_item(row, chain, page))

    def _place_without_route(self, row: PageRow) -> None:
        if self._circuits.wait_for_route(row.topic, row.id, row.now):
            self._plan.parked.append((row, behind_topic(row.topic)))
        else:
            self._place_decided(row, Rejected(NO_ROUTE), "without a route")

    def _place_decided(self, row: PageRow, outcome: Rejected, dead_reason: str) -> None:
        """Nobody is asked about it, but it must not die before its turn in the key's order."""
        if row.earlier is not None and row.earlier not in self._accepted:
            self._hold(row, row.earlier)
        else:
            chain = self._accept(row, None)
            chain.items.append(Item(row, chain, None, outcome, dead_reason))

    def _may_probe(self, row: PageRow) -> bool:
        circuit = self._circuits.known(row.topic)
        free = row.earlier is None and row.topic not in self._topics_of_probes
        return circuit.breaker == HALF_OPEN and free and circuit.probe_id in {None, row.id}

    def _hold(self, row: PageRow, earlier: int) -> None:
        """An earlier one of the key is outstanding but not in this page: wait behind it."""
        assert row.order_key is not None
        if row.order_key not in self._plan.holds:
            reason = "an earlier message of the key is not due yet"
            hold = NewHold(row.order_key, earlier, reason, row.later_head(earlier))
            self._plan.holds[row.order_key] = hold
        self._park_behind_key(row)

    def _park_behind_key(self, row: PageRow) -> None:
        assert row.order_key is not None
        self._plan.parked.append((row, behind_key(row.order_key)))

    def _accept(self, row: PageRow, name: str | None) -> Chain:
        """The chain that the row belongs to."""
        chain = self._accepted.get(row.earlier) if row.earlier is not None else None
        if chain is None:
            chain = Chain(row.topic, self._policies.holds(row.topic))
            self._enlist(chain, row, name)
        self._accepted[row.id] = chain
        return chain

    def _enlist(self, chain: Chain, row: PageRow, name: str | None) -> None:
        if name is None:
            self._plan.decided.append(chain)
        elif self._circuits.closed(row.topic):
            self._plan.part(name).chains.append(chain)
        else:
            self._topics_of_probes.add(row.topic)
            self._circuits.breaker.probe(self._circuits.known(row.topic), row.id)
            self._plan.part(name).probes.append(chain)


def _item(row: PageRow, chain: Chain, page: Page) -> Item:
    try:
        if row.expires_at is not None and row.expires_at <= row.now:
            expired = Expired("The message expired before it was sent.")
            return Item(row, chain, None, expired, "expired")
        return Item(row, chain, envelope(row, page.bodies.get(row.id)))
    except (ValueError, TypeError) as error:
        return Item(row, chain, None, *_unreadable(describe(error)))


def _unreadable(error: str) -> tuple[Rejected, str]:
    return Rejected(f"The row cannot be read: {error}"), "unreadable"


def envelope(row: PageRow, body: bytes | None) -> Envelope:
    """The row as publishers get it. Raises ``ValueError`` or ``TypeError`` for a damaged row."""
    inline = row.body if row.body is not None else body
    if inline is None:
        raise ValueError("the body is missing")
    return Envelope(
        row.message_id,
        row.topic,
        row.key,
        bytes(inline),
        row.content_type,
        _NO_HEADERS if row.headers == "{}" else decode_headers(row.headers),
        row.correlation_id,
        row.causation_id,
        row.created_at,
        row.attempts + 1,
    )
