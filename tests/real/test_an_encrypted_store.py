"""A broker whose store is encrypted, on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import Broker, JournalSettings, SettingsError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = b"the combination is 1-2-3-4-5"


async def test_a_broker_takes_up_what_it_has_encrypted(tmp_path: Path) -> None:
    async def contents(*keys: bytes) -> list[bytes]:
        async with (
            Broker("shop", data_dir=tmp_path, journal=JournalSettings(encryption_keys=keys)) as broker,
            broker.client() as client,
        ):
            await client.send("orders", SECRET)
            async with client.consumer("orders") as consumer:
                return [one.body for one in [await consumer.receive(timeout=5) for _ in keys] if one is not None]

    assert await contents(OLD) == [SECRET]
    assert await contents(NEW, OLD) == [SECRET, SECRET]
    assert not any(SECRET in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(SettingsError, match="encryption_keys"):
        await contents()
