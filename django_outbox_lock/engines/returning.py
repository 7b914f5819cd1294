"""Brings parked rows back, a page at a time, when what they wait for is over."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_outbox_lock.breaker import CLOSED
from django_outbox_lock.models import Hold, OutboxMessage, TopicState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.breaker import Circuit
    from django_outbox_lock.engines.circuits import Circuits
    from django_outbox_lock.engines.routing import Routing

# Topics and holds of one step; the rest waits for the next one.
TOPICS_OF_A_STEP = 100
# Parked messages that are looked at to find one for the probe.
CANDIDATES = 100


@dataclass(slots=True)
class _Step:
    messages: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    moved: tuple[int, int, int | None] | None = None
    more: bool = False


class Returns:
    """Looks for parked rows that may come back; used inside the holder's transaction only."""

    def __init__(self, using: str, circuits: Circuits, routing: Routing, limit: int) -> None:
        self._circuits = circuits
        self._routing = routing
        self._limit = limit
        self._messages = OutboxMessage.objects.using(using)
        self._holds = Hold.objects.using(using)
        self._topics = TopicState.objects.using(using)

    def step(self, now: int) -> bool:
        """Bring back at most a page for each of some topics and for the ending holds.

        ``now`` is the server's clock. Tells whether more is left to do at once.
        """
        step = _Step()
        waiting = [circuit for circuit in self._circuits if self._wants_attention(circuit, now)]
        step.more = len(waiting) > TOPICS_OF_A_STEP
        for circuit in itertools.islice(waiting, TOPICS_OF_A_STEP):
            self._topic(circuit, step)
        self._ending_holds(step)
        self._write(step, now)
        return step.more

    def _wants_attention(self, circuit: Circuit, now: int) -> bool:
        return self._circuits.wants_attention(circuit, self._routing, now)

    def _topic(self, circuit: Circuit, step: _Step) -> None:
        if circuit.unroutable_since is not None:
            if self._routing.name(circuit.topic) is not None:
                self._circuits.found_route(circuit)
            self._topic_returns(circuit, step)
        elif circuit.breaker == CLOSED:
            self._topic_returns(circuit, step)
        else:
            self._choose_probe(circuit, step)

    def _topic_returns(self, circuit: Circuit, step: _Step) -> None:
        ids = list(itertools.islice(self._parked(circuit), self._limit))
        step.messages += ids
        # A topic that still has no route keeps its clock until its last rows were met again.
        if len(ids) == self._limit or (ids and circuit.unroutable_since is not None):
            step.more = True
        else:
            self._circuits.all_returned(circuit)

    def _choose_probe(self, circuit: Circuit, step: _Step) -> None:
        """Another message than the last time, if there is one, and the first of its key.

        Those whose key is on hold come back to be parked behind it, out of the way.
        """
        held: list[int] = []
        parked = False
        for id_, order_key in self._candidates(circuit):
            parked = True
            if self._is_held(id_, order_key):
                held.append(id_)
            elif self._messages.is_first_of_key(id_, order_key):
                self._circuits.breaker.probe(circuit, id_)
                step.messages.append(id_)
                return
        step.messages += held
        step.more = step.more or bool(held)
        if not held:
            self._circuits.breaker.probe(circuit, None, again=parked)

    def _candidates(self, circuit: Circuit) -> Iterator[tuple[int, int | None]]:
        """Parked messages: after the last probe and of another key first, then from the start."""
        last = circuit.probe_id or 0
        last_key = self._messages.filter(id=last).values_list("order_key", flat=True).first()
        parked = self._messages.parked_behind(circuit.topic)
        rows = parked.values_list("id", "topic", "order_key")
        for id_, topic, order_key in rows.filter(id__gt=last)[:CANDIDATES]:
            if topic == circuit.topic and (order_key is None or order_key != last_key):
                yield id_, order_key
        for id_, topic, order_key in rows[:CANDIDATES]:
            if topic == circuit.topic:
                yield id_, order_key

    def _is_held(self, message_id: int, order_key: int | None) -> bool:
        if order_key is None:
            return False
        return self._holds.filter(order_key=order_key, head_id__lt=message_id).exists()

    def _parked(self, circuit: Circuit) -> Iterator[int]:
        rows = self._messages.parked_behind(circuit.topic).values_list("id", "topic")
        for id_, topic in rows[: self._limit]:
            if topic == circuit.topic:
                yield id_

    def _ending_holds(self, step: _Step) -> None:
        """End the holds whose parked rows all come back; the last may need another page."""
        keys = self._holds.ending(self._limit)
        if not keys:
            return
        parked = self._messages.parked_behind_keys(list(keys)).values_list("id", "order_key")
        rows = list(parked[: self._limit])
        step.messages += [id_ for id_, key in rows if not _is_behind(id_, keys[key])]
        over = list(keys)
        if len(rows) == self._limit:
            last_id, last_key = rows[-1]
            over = [key for key in keys if key < last_key]
            if _is_behind(last_id, keys[last_key]):
                over.append(last_key)
            else:
                step.moved = (last_key, last_id, keys[last_key])
            step.more = True
        step.ended = [key for key in over if keys[key] is None]
        step.resumed = [key for key in over if keys[key] is not None]
        step.more = step.more or len(keys) == self._limit

    def _write(self, step: _Step, now: int) -> None:
        circuits = self._circuits.changed()
        if circuits:
            self._topics.record([circuit.row() for circuit in circuits])
        if step.ended:
            self._holds.end(step.ended)
        if step.resumed:
            self._holds.resume(step.resumed)
        if step.moved:
            self._holds.move(*step.moved)
        if step.messages:
            self._messages.come_back(sorted(set(step.messages)))
        self._circuits.written(circuits, now)


def _is_behind(message_id: int, dead_head: int | None) -> bool:
    return dead_head is not None and message_id > dead_head
