"""The breaker's decisions, without a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox_lock.breaker import CLOSED, HALF_OPEN, OPEN, RETURNING, Breaker, Circuit
from django_outbox_lock.clock import SECOND


def opened(breaker: Breaker) -> Circuit:
    circuit = Circuit("t")
    breaker.trip(circuit, "down")
    return circuit


def test_a_circuit_opens_at_the_threshold() -> None:
    breaker, circuit = Breaker(threshold=3), Circuit("t")
    for failures in (1, 2):
        breaker.failed(circuit, "busy")
        assert (circuit.breaker, circuit.failures) == (CLOSED, failures)
    breaker.failed(circuit, "busy")
    assert (circuit.breaker, circuit.openings, circuit.last_error) == (OPEN, 1, "busy")
    assert circuit.parks


def test_a_success_of_a_healthy_topic_writes_nothing() -> None:
    circuit = Circuit("t")
    Breaker().succeeded(circuit)
    assert not circuit.changed


def test_a_success_forgets_the_failures() -> None:
    breaker, circuit = Breaker(threshold=2), Circuit("t")
    breaker.failed(circuit, "busy")
    breaker.succeeded(circuit)
    breaker.failed(circuit, "busy")
    assert circuit.breaker == CLOSED


def test_the_cooldown_doubles_up_to_the_cap() -> None:
    breaker = Breaker(cooldown=10, cap=40)
    circuit = opened(breaker)
    for seconds in (10, 20, 40, 40):
        assert circuit.open_in is not None
        assert 0.9 * seconds * SECOND <= circuit.open_in <= seconds * SECOND
        breaker.trip(circuit, "down")


def test_a_successful_probe_closes_and_lets_the_parked_return() -> None:
    breaker = Breaker()
    circuit = opened(breaker)
    breaker.probe(circuit, 7)
    assert (circuit.breaker, circuit.probe_id, circuit.parks) == (HALF_OPEN, 7, True)
    breaker.succeeded(circuit)
    assert (circuit.breaker, circuit.open_until, circuit.openings) == (CLOSED, RETURNING, 0)
    assert circuit.returning
    assert not circuit.parks


def test_a_probe_that_was_not_tried_does_not_lengthen_the_cooldown() -> None:
    breaker = Breaker()
    circuit = opened(breaker)
    breaker.probe(circuit, 7)
    breaker.put_off(circuit, "down")
    assert (circuit.breaker, circuit.openings) == (OPEN, 1)


def test_the_time_for_a_probe_comes_with_the_servers_clock() -> None:
    circuit = Circuit("t", breaker=OPEN, open_until=100)
    assert not circuit.needs_probe(99)
    assert circuit.needs_probe(100)
    assert not Circuit("t").needs_probe(100)


def test_a_probe_of_which_nothing_becomes_is_chosen_again() -> None:
    breaker, circuit = Breaker(), Circuit("t", breaker=HALF_OPEN, open_until=100, probe_id=7)
    assert circuit.needs_probe(100)
    breaker.probe(circuit, 8)
    assert circuit.row()["open_in"] is not None
    breaker.probe(circuit, None, again=False)
    assert circuit.row()["open_in"] is None
    assert circuit.row()["open_until"] is None


@given(st.lists(st.sampled_from(["failed", "succeeded", "trip", "probe"]), max_size=40))
def test_no_history_leaves_an_open_circuit_without_a_way_out(history: list[str]) -> None:
    breaker, circuit = Breaker(threshold=2), Circuit("t")
    for event in history:
        if event == "probe":
            if circuit.breaker != CLOSED:
                breaker.probe(circuit, 1)
        elif event == "succeeded":
            breaker.succeeded(circuit)
        else:
            getattr(breaker, event)(circuit, "down")
        if circuit.breaker != CLOSED:
            assert circuit.open_in is not None
        else:
            assert circuit.failures < 2
            assert circuit.open_until in {None, RETURNING}


def test_a_circuit_is_what_its_row_says() -> None:
    circuit = Circuit("t", breaker=OPEN, failures=1, openings=2, open_until=3, probe_id=4)
    row = circuit.row()
    assert Circuit.of(row) == circuit
    assert len(row["id"]) == 64


@pytest.mark.parametrize("options", [{"cooldown": 0}, {"cooldown": 5, "cap": 1}])
def test_senseless_times_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Breaker(**options)  # type: ignore[arg-type]
