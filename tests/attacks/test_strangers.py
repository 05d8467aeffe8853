"""What strangers can do to the connections of a broker: each attack, with the bound that holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import half_open, herd, one_user, siege


@pytest.mark.processes
async def test_more_clients_of_one_host_than_there_is_room_for_all_come_back_over_tls_after_a_kill(
    tmp_path: Path,
) -> None:
    (await herd.attack(tmp_path, size=45, descriptors=128)).check()


@pytest.mark.processes
async def test_half_open_connections_take_no_descriptor_from_the_store_and_keep_nobody_out(tmp_path: Path) -> None:
    (await half_open.attack(tmp_path)).check()


@pytest.mark.processes
async def test_one_user_takes_no_more_than_their_sessions_and_leaves_room_for_others(tmp_path: Path) -> None:
    (await one_user.attack(tmp_path)).check()


@pytest.mark.processes
async def test_a_short_siege_loses_tears_and_doubles_nothing(tmp_path: Path) -> None:
    (await siege.attack(tmp_path, siege.Scale(kills=4, frames=300, half_open=500, time_s=120))).check()
