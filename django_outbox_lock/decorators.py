"""A function that runs on one replica at a time."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from django_outbox_lock import checked
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
    make()  # a wrong name or time is told where it is written

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        name = getattr(function, "__qualname__", None) or repr(function)  # a partial has none
        is_asynchronous = _is_asynchronous(function, name)

        @functools.wraps(function)
        def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            held = make()
            with contextlib.ExitStack() as stack:
                stack.push(held)  # before it is entered: a signal's handler may raise in between
                try:
                    held.__enter__()
                except LockNotObtained as busy:
                    logger.info("%s was not run: %s", name, busy)
                    return None
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(
                        f"{name} gave a coroutine, which would run after the lock: put "
                        "single_instance right above the async def."
                    )
                return result

        @functools.wraps(function)
        async def single_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            held = make()
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_exit(held)
                try:
                    await held.__aenter__()
                except LockNotObtained as busy:
                    logger.info("%s was not run: %s", name, busy)
                    return None
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        if is_asynchronous:
            return cast("Callable[P, R | None]", single_async)
        return single

    return decorate


def _is_asynchronous(function: Callable[..., Any], name: str) -> bool:
    """Whether a call has to be awaited; raises ``TypeError`` for what cannot run under a lock."""
    if isinstance(function, classmethod | staticmethod):
        raise TypeError(f"Put single_instance below @{type(function).__name__}, not above it.")
    checked.function("What single_instance decorates", function)
    looks = (function, getattr(function, "__call__", None))  # noqa: B004 (an object that is called)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in looks):
        raise TypeError(f"{name} is a generator: it would run after the lock.")
    return any(iscoroutinefunction(f) for f in looks)
