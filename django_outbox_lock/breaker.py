"""The circuit breaker of a topic: pure decisions over the columns of ``TopicState``.

``closed``: messages go. ``open``: they are parked until ``open_until``. ``half-open``: one message,
the probe, goes alone; its fate closes or opens the circuit. ``open_until`` 0 with a closed circuit
means that parked rows are still to come back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from django_outbox_lock.clock import SECOND
from django_outbox_lock.keys import topic_id
from django_outbox_lock.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"
RETURNING = 0


@dataclass(slots=True)
class Circuit:
    """A topic's state as it was read and as it becomes.

    ``open_in`` and ``unroutable_in`` (microseconds) ask the server to write its clock plus so much
    in place of ``open_until`` and ``unroutable_since``. ``probe_id`` is the probe of a half-open
    circuit and the last probe of an open one; for a topic without a route, the newest message that
    was waiting when the wait began.
    """

    topic: str
    breaker: str = CLOSED
    failures: int = 0
    openings: int = 0
    open_until: int | None = None
    probe_id: int | None = None
    unroutable_since: int | None = None
    last_error: str = ""
    open_in: int | None = None
    unroutable_in: int | None = None
    changed: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Circuit:
        """From the columns of a row."""
        names = ("topic", "breaker", "failures", "openings", "open_until", "probe_id")
        return cls(**{name: row[name] for name in (*names, "unroutable_since", "last_error")})

    def row(self) -> dict[str, Any]:
        """What ``TopicStateQuerySet.record`` writes."""
        values = asdict(self)
        del values["changed"]
        return {"id": topic_id(self.topic), **values}

    @property
    def parks(self) -> bool:
        """Whether the topic's messages are to be parked, but for a probe."""
        return self.breaker != CLOSED or self.without_route

    @property
    def without_route(self) -> bool:
        """Whether the topic waits for a route."""
        return self.unroutable_since is not None or self.unroutable_in is not None

    @property
    def returning(self) -> bool:
        """Whether parked rows are still to come back."""
        return self.breaker == CLOSED and self.open_until == RETURNING

    def needs_probe(self, now: int) -> bool:
        """Whether the time to try has come; ``now`` is the server's clock in microseconds."""
        return self.breaker != CLOSED and self.open_until is not None and self.open_until <= now


class Breaker:
    """When circuits open and close. Times are in seconds.

    ``threshold`` failures in a row open a circuit for ``cooldown``, which doubles with each failed
    probe up to ``cap``.
    """

    def __init__(self, *, threshold: int = 5, cooldown: float = 5.0, cap: float = 300.0) -> None:
        self.threshold = threshold
        self._cooldown = Backoff(base=cooldown, cap=cap, jitter=0.1)

    def succeeded(self, circuit: Circuit) -> None:
        """The broker answered for a message of the topic: the way is open."""
        if circuit.breaker == CLOSED and not circuit.failures:
            return
        if circuit.breaker != CLOSED:
            circuit.open_until, circuit.open_in = RETURNING, None
            circuit.probe_id = None
        circuit.breaker = CLOSED
        circuit.failures = circuit.openings = 0
        circuit.changed = True

    def failed(self, circuit: Circuit, error: str) -> None:
        """One message of the topic was to be tried again later."""
        circuit.failures += 1
        circuit.last_error = error
        circuit.changed = True
        if circuit.breaker != CLOSED or circuit.failures >= self.threshold:
            self.trip(circuit, error)

    def trip(self, circuit: Circuit, error: str) -> None:
        """Open the circuit, or open it again for longer after a failed probe."""
        circuit.breaker = OPEN
        circuit.openings += 1
        circuit.open_until, circuit.open_in = None, self._microseconds(circuit)
        circuit.last_error = error
        circuit.changed = True

    def put_off(self, circuit: Circuit, error: str) -> None:
        """The probe was not tried, because of others: open again, for as long as before."""
        circuit.openings -= 1
        self.trip(circuit, error)

    def probe(self, circuit: Circuit, message_id: int | None, *, again: bool = True) -> None:
        """Let one message try: this one or, for None, the first that is met.

        Should nothing become of it (it was removed, the process ended), another is chosen after
        the cooldown, unless there is none (``again`` is false).
        """
        circuit.breaker = HALF_OPEN
        circuit.probe_id = message_id
        circuit.open_until = None
        circuit.open_in = self._microseconds(circuit) if again else None
        circuit.changed = True

    def _microseconds(self, circuit: Circuit) -> int:
        return int(self._cooldown.delay(max(1, circuit.openings)) * SECOND)
