"""A function that runs on one replica at a time."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from django_outbox_lock.exceptions import LockNotObtained
from django_outbox_lock.locking import lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django_outbox_lock.backends.locks.watched import Callback

logger = logging.getLogger("django_outbox_lock.locks")

P = ParamSpec("P")
R = TypeVar("R")


def single_instance(
    resource: str,
    *,
    timeout: float = 0.0,
    using: str | None = None,
    minimum_hold: float = 0.0,
    maximum_hold: float | None = None,
    on_lost: Callback | None = None,
    on_risk: Callback | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Run the function only where ``resource`` can be had; elsewhere log at INFO, return None.

    Takes what ``lock`` takes, and raises what ``lock`` raises, except ``LockNotObtained``. Works
    for coroutine functions, too.
    """
    if not isinstance(resource, str):
        raise TypeError(f"single_instance takes the name of a lock, not {resource!r}.")
    make = functools.partial(
        lock,
        resource,
        timeout=timeout,
        using=using,
        minimum_hold=minimum_hold,
        maximum_hold=maximum_hold,
        on_lost=on_lost,
        on_risk=on_risk,
    )
    make()  # a wrong time is told where it is written

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: it would run after the lock.")

        @functools.wraps(function)
        def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            held = make()
            with contextlib.ExitStack() as stack:
                stack.push(held)  # before it is entered: a signal's handler may raise in between
                try:
                    held.__enter__()
                except LockNotObtained as busy:
                    logger.info("%s was not run: %s", function.__qualname__, busy)
                    return None
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def single_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            held = make()
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_exit(held)
                try:
                    await held.__aenter__()
                except LockNotObtained as busy:
                    logger.info("%s was not run: %s", function.__qualname__, busy)
                    return None
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R | None]", single_async)
        return single

    return decorate
