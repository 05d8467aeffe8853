"""What ``serve`` takes for a handler: refused at the call, where there is no message yet that could be lost by it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from meshq.client.receive._handlers import check_serving
from meshq.errors import SettingsError


async def good(delivery: object) -> None:
    """A handler as it should be."""


async def with_default(delivery: object, retries: int = 3) -> None:
    """What is more has a default."""


async def of_two(client: object, delivery: object) -> None:
    """Too many parameters."""


async def of_none() -> None:
    """Too few."""


async def named(delivery: object, *, retries: int) -> None:
    """One that nobody gives."""


def plain(delivery: object) -> None:
    """Not async."""


def passes_on(delivery: object) -> Awaitable[None]:
    """It says what it returns."""
    return good(delivery)


@functools.wraps(good)
def wrapped(*given: Any) -> Any:
    """As a decorator leaves it."""
    return good(*given)


class Handlers:
    """Methods are handlers, too."""

    async def good(self, delivery: object) -> None:
        """Bound, it has one parameter."""

    async def of_two(self, client: object, delivery: object) -> None:
        """Bound, it has two."""

    def plain(self, delivery: object) -> None:
        """Not async."""


class Callee:
    """An object that can be called."""

    async def __call__(self, delivery: object) -> None:
        """As a handler is."""


class PlainCallee:
    """An object that can be called, and is not async."""

    def __call__(self, delivery: object) -> None:
        """Not async."""


class PassingCallee:
    """An object that can be called, and says what it returns."""

    def __call__(self, delivery: object) -> Awaitable[None]:
        """Awaited by whoever called it."""
        return good(delivery)


@pytest.mark.parametrize("handler", [of_two, of_none, named, Handlers().of_two, Handlers.good])
@pytest.mark.parametrize("threads", [False, True])
def test_a_handler_that_a_delivery_alone_does_not_fit_is_refused(handler: Callable[..., Any], threads: bool) -> None:
    with pytest.raises(SettingsError, match=r"handler=.* takes \(.*can be called with a delivery$") as caught:
        check_serving(handler, 1, None, None, threads=threads)
    assert caught.value.value is handler


@pytest.mark.parametrize(
    "handler",
    [plain, Handlers().plain, functools.partial(plain), PlainCallee(), functools.partial(PlainCallee())],
)
def test_a_plain_function_is_refused_where_handlers_are_awaited_and_taken_in_threads(handler: Any) -> None:
    with pytest.raises(SettingsError, match="which is not async, is not allowed; allowed: an async function of a"):
        check_serving(handler, 1, None, None)
    assert check_serving(handler, 1, None, None, threads=True) == 2


@pytest.mark.parametrize(
    "handler",
    [
        good,
        with_default,
        passes_on,
        wrapped,
        Handlers().good,
        functools.partial(of_two, "client"),
        Callee(),
        functools.partial(Callee()),
        PassingCallee(),
        mock.AsyncMock(),
        lambda delivery: good(delivery),
    ],
)
def test_whatever_may_be_awaited_with_one_delivery_is_a_handler(handler: Any) -> None:
    assert check_serving(handler, 2, None, None) == 4


@pytest.mark.parametrize("on_error", [lambda error: None, lambda: None, lambda one, two, three: None])
def test_on_error_is_given_a_delivery_and_an_exception(on_error: Any) -> None:
    with pytest.raises(SettingsError, match=r"on_error=.*can be called with a delivery and an exception$"):
        check_serving(good, 1, on_error, None)
    assert check_serving(good, 1, lambda delivery, error: None, None) == 2
