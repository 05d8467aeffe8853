"""A directory that everybody may write to is no place for a store: a program is told so, as a configuration is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshq import Broker, SettingsError, StoreDirectories
from meshq.config import load_broker
from meshq.errors import ConfigError
from meshq.store import Journal


def made(path: Path, mode: int) -> Path:
    """A directory of this mode, whatever the umask says."""
    path.mkdir()
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
async def test_a_broker_refuses_a_directory_that_everybody_may_write_to(tmp_path: Path, mode: int) -> None:
    data = made(tmp_path / "data", mode)
    with pytest.raises(SettingsError) as caught:
        async with Broker("hq", data_dir=data):
            pass
    assert (caught.value.setting, caught.value.value) == ("data_dir", str(data))
    assert f"everybody may write to '{data}' (mode {mode:o}); allowed: chmod o-w" in str(caught.value)
    assert os.listdir(data) == []
    # The same sentence as for a configuration.
    file = tmp_path / "broker.toml"
    file.write_text(f'name = "hq"\ndata_dir = "{data}"\n')
    with pytest.raises(ConfigError, match="everybody may write to"):
        load_broker(file)
    data.chmod(mode & ~0o002)
    async with Broker("hq", data_dir=data) as broker:
        assert broker.durable


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o755, 0o2775])
async def test_any_other_directory_will_do(tmp_path: Path, mode: int) -> None:
    async with Broker("hq", data_dir=made(tmp_path / "data", mode)) as broker:
        assert broker.durable
    # What the broker makes is its own, in whatever place.
    shared = made(tmp_path / "shared", 0o1777)
    async with Broker("hq", data_dir=shared / "mine"):
        assert (shared / "mine").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["journal", "bindings", "paging", "large_messages"])
async def test_the_parts_elsewhere_are_judged_alike(tmp_path: Path, part: str) -> None:
    elsewhere = made(tmp_path / "elsewhere", 0o777)
    directories = StoreDirectories(**{part: str(elsewhere)})
    with pytest.raises(SettingsError) as caught:
        async with Broker("hq", data_dir=tmp_path / "data", directories=directories):
            pass
    assert (caught.value.setting, caught.value.value) == (f"directories.{part}", str(elsewhere))
    assert os.listdir(elsewhere) == [] and not (tmp_path / "data").exists()


@pytest.mark.parametrize("part", ["journal", "bindings", "paging", "large"])
@pytest.mark.parametrize("linked", [False, True])
async def test_every_part_within_is_judged_alike_and_so_is_what_a_link_leads_to(
    tmp_path: Path, part: str, linked: bool
) -> None:
    data = made(tmp_path / "data", 0o755)
    place = made(tmp_path / "place" if linked else data / part, 0o777)
    if linked:
        (data / part).symlink_to(place)
    before = sorted(os.listdir(data))
    with pytest.raises(SettingsError) as caught:
        async with Broker("hq", data_dir=data):
            pass
    assert (caught.value.setting, caught.value.value) == ("data_dir", str(data / part))
    assert f"everybody may write to '{data / part}' (mode 777); allowed: chmod o-w" in str(caught.value)
    assert sorted(os.listdir(data)) == before and os.listdir(place) == []
    place.chmod(0o755)
    async with Broker("hq", data_dir=data) as broker:
        assert broker.durable


async def test_a_journal_alone_refuses_it_as_well(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="everybody may write to"):
        async with Journal(str(made(tmp_path / "data", 0o777))):
            pass


async def test_a_store_whose_directory_was_opened_to_all_is_refused_at_its_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with Broker("hq", data_dir=data):
        pass
    data.chmod(0o777)
    with pytest.raises(SettingsError, match=r"mode 777\)"):
        async with Broker("hq", data_dir=data):
            pass
