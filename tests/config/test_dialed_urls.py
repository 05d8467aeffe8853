"""URLs that a start would not dial, and the password that everybody knows, are found in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq import Bridge, Broker, ClusterConnection, SettingsError
from meshq.abc import Service
from meshq.config import load_broker
from meshq.errors import ConfigError

HERE = "tcp://127.0.0.1:1"
#: URLs that can't be dialed, and what is said of them.
WRONG = {
    "ftp://localhost:1": "'ftp://localhost:1' is not allowed; allowed: tcp://",
    "tcp://hq": "'tcp://hq' is not allowed; allowed: ",
    "tcp://hq:70000": "'tcp://hq:70000' is not allowed; allowed: ",
    "tcp://:1": "'tcp://:1' is not allowed; allowed: ",
    "tcp://hq:1": "'tcp://hq:1' is not allowed; allowed: plaintext to this machine only",
    "tls://hq:1?nonsense=canary": "'tls://hq:1' is not allowed; allowed: a URL with nonsense as a known setting",
    "tls://hq:1?password=canary": "'tls://hq:1' is not allowed; allowed: a URL with password as password= beside",
}
PLACES = ("target", "named target", "static", "named static")


def problems(file: Path, connectors: dict[str, str], service: str) -> list[tuple[int, str]]:
    """Line and text of each problem of a file with these connectors and this service."""
    lines = [f'{name} = "{url}"' for name, url in connectors.items()]
    file.write_text("\n".join(['name = "b"', "data_dir = false", "[connectors]", *lines, "[[services]]", service]))
    with pytest.raises(ConfigError) as caught:
        load_broker(file)
    return [(line, text) for _, line, _, text in caught.value.problems]


async def refused(connectors: dict[str, str], service: Service) -> SettingsError:
    """What a start says."""
    with pytest.raises(SettingsError) as caught:
        async with Broker("b", data_dir=None, connectors=connectors, services=[service]):
            pass
    return caught.value


def settings_of(place: str, url: str) -> tuple[dict[str, str], type[Any], dict[str, Any]]:
    """A service that is to dial a URL."""
    named = {"there": url} if place.startswith("named") else {}
    what = "there" if named else url
    if "target" in place:
        return named, Bridge, {"name": "out", "queue": "q", "target": what}
    given: dict[str, Any] = {"name": "mesh", "connector": "here", "static_connectors": [what]}
    return {"here": HERE, **named}, ClusterConnection, {**given, "user": "u", "password": "secret"}


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("place", PLACES)
async def test_a_url_that_can_not_be_dialed_is_found_where_it_stands_and_as_a_start_says_it(
    tmp_path: Path, place: str, url: str
) -> None:
    connectors, kind, given = settings_of(place, url)
    table = [f"{name} = {value!r}" for name, value in given.items()]
    kinds = {Bridge: "bridge", ClusterConnection: "cluster_connection"}
    ((line, text),) = problems(tmp_path / "b.toml", connectors, "\n".join([f'kind = "{kinds[kind]}"', *table]))
    assert url.partition("?")[0] in (tmp_path / "b.toml").read_text().splitlines()[line - 1]
    where = "connectors.there" if place.startswith("named") else f"services[0].{'target' if kind is Bridge else 'st'}"
    assert text.startswith(where) and WRONG[url] in text, text
    assert "canary" not in text
    error = await refused(connectors, kind(**given))
    assert str(error).partition("=")[2] == text.partition(": ")[2]
    assert error.setting.startswith(("connectors['there']", "target", "static_connectors"))


async def test_the_password_that_everybody_knows_is_refused_where_others_are_dialed(tmp_path: Path) -> None:
    own = {"here": "tls://hq:1"}
    service = 'kind = "cluster_connection"\nname = "mesh"\nconnector = "here"\n'
    cases = [
        (own, service, ClusterConnection("mesh", connector="here")),
        (
            {"here": HERE},
            f'{service}static_connectors = ["tls://hq:1"]',
            ClusterConnection("mesh", connector="here", static_connectors=["tls://hq:1"]),
        ),
    ]
    for connectors, table, built in cases:
        ((_, text),) = problems(tmp_path / "b.toml", connectors, table)
        assert text == (
            "services[0].password: *** is not allowed; allowed: another one than the default, with tls://hq:1"
        )
        error = await refused(connectors, built)
        assert (error.setting, error.allowed) == ("password", text.partition("allowed: ")[2])


def test_a_wrong_connector_of_two_services_is_said_once(tmp_path: Path) -> None:
    bridge = 'kind = "bridge"\nname = "%s"\nqueue = "q"\ntarget = "there"'
    found = problems(tmp_path / "b.toml", {"there": "tcp://hq"}, f"{bridge % 'a'}\n[[services]]\n{bridge % 'b'}")
    assert [(line, text.partition(":")[0]) for line, text in found] == [(4, "connectors.there")]
