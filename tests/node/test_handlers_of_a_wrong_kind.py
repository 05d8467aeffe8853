"""``client.serve`` with functions of a wrong kind that only their first message finds out."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import AddressSettings, Delivery, SettingsError
from tests.node.lives import lives
from tests.node.test_settling_blocks import counts, filled


async def test_a_handler_that_is_not_async_ends_the_worker_and_its_message_comes_again() -> None:
    async with lives() as node, node.client() as client:
        await filled(node, client, 1)
        ran: list[bytes] = []
        with trio.fail_after(5), pytest.raises(SettingsError, match="an async function of a delivery") as raised:
            await client.serve("q", lambda delivery: ran.append(delivery.body))  # type: ignore[arg-type]
        assert (raised.value.setting, ran) == ("handler", [b"0"])
        assert (await counts(client))[:3] == (1, 0, 0)


async def test_no_delivery_is_counted_to_a_handler_that_is_not_async_and_what_others_have_finished_stays_so() -> None:
    once = {"q": AddressSettings(max_delivery_attempts=1)}
    async with lives(address_settings=once) as node, node.client() as client:
        await filled(node, client, 3)

        async def good(delivery: Delivery) -> None:
            await trio.sleep(1)

        def handler(delivery: Delivery) -> Any:
            return good(delivery) if delivery.body == b"0" else None

        with trio.fail_after(5), pytest.raises(SettingsError, match="an async function of a delivery"):
            await client.serve("q", lambda delivery: handler(delivery), concurrency=3)
        assert (await counts(client))[:3] == (2, 0, 1)
        async with client.consumer("q") as consumer:
            again = [await consumer.receive() for _ in range(2)]
        assert [(one.body, one.delivery_count) for one in again if one is not None] == [(b"1", 1), (b"2", 1)]


async def test_a_function_for_errors_that_is_async_is_refused_or_ends_the_worker() -> None:
    async with lives() as node, node.client() as client:
        await filled(node, client, 1)

        async def fails(delivery: Delivery) -> None:
            raise ValueError

        async def told(delivery: Delivery, error: Exception) -> None:
            raise AssertionError("it is awaited by nobody")

        with pytest.raises(SettingsError, match=r"on_error=.*not async"):
            await client.serve("q", fails, on_error=told)
        assert (await client.queue("q")).redelivered == 0
        with trio.fail_after(5), pytest.raises(SettingsError, match=r"on_error=.*not async"):
            await client.serve("q", fails, on_error=lambda delivery, error: told(delivery, error))
        assert (await counts(client))[:3] == (1, 0, 0)
