"""Files that a configuration names: what nobody can rely on is refused by name, and nothing waits for an end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshq.config import check_broker, load_broker
from meshq.errors import ConfigError
from tests.env.authorities import Authority


def problem(file: Path, text: str, load: object = load_broker) -> str:
    """The one problem of a file; empty if there is none."""
    file.write_text(text)
    try:
        load(file)  # type: ignore[operator]
    except ConfigError as error:
        ((_, _, _, found),) = error.problems
        return found
    return ""


def with_secret(path: object) -> str:
    return f'name = "b"\ndata_dir = false\n[security.users]\napp = {{ file = "{path}" }}\n'


def test_a_secret_that_never_begins_or_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", tmp_path):
        said = problem(tmp_path / "b.toml", with_secret(path))
        assert f"{path} can't be read: it is no regular file" in said
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "large").chmod(0o600)
    assert "it has more than 65536 bytes" in problem(tmp_path / "b.toml", with_secret(tmp_path / "large"))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o660, 0o602, 0o666])
def test_a_secret_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a long password\n")
    secret.chmod(mode)
    said = problem(tmp_path / "b.toml", with_secret(secret))
    if mode & 0o022:
        assert f"others may write to it (mode {mode:o}); allowed: chmod go-w" in said
    else:
        assert said == ""


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777, 0o1777])
def test_a_store_that_everybody_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    said = problem(tmp_path / "b.toml", f'name = "b"\ndata_dir = "{data}"\n')
    assert (f"everybody may write to '{data}' (mode {mode:o})" in said) is bool(mode & 0o002)
    assert said or not mode & 0o002


PARTS = {"journal": "journal", "bindings": "bindings", "paging": "paging", "large_messages": "large"}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_store_is_looked_at_as_a_start_does(tmp_path: Path, part: str) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (data / PARTS[part]).mkdir(parents=True)
    elsewhere.mkdir()
    for place in (data / PARTS[part], elsewhere):
        place.chmod(0o777)
    text = f'name = "b"\ndata_dir = "{data}"\n'
    said = problem(tmp_path / "b.toml", text)
    assert f"data_dir: everybody may write to '{data / PARTS[part]}' (mode 777); allowed: chmod o-w" in said
    said = problem(tmp_path / "b.toml", f'{text}[directories]\n{part} = "{elsewhere}"\n')
    # What is not used any more is not looked at.
    assert said == f"directories.{part}: everybody may write to '{elsewhere}' (mode 777); allowed: chmod o-w"


def test_a_store_that_can_not_be_looked_at_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = tmp_path / "file" / "data"
    said = problem(tmp_path / "b.toml", f'name = "b"\ndata_dir = "{data}"\n')
    assert said == f"data_dir: {data} can't be looked at: Not a directory"


def test_all_directories_that_are_wrong_are_named_at_once(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("data", "journal", "paging")}
    for place in places.values():
        place.mkdir()
        place.chmod(0o777)
    (places["data"] / "large").mkdir()
    (places["data"] / "large").chmod(0o777)
    outside = "".join(f'{name} = "{places[name]}"\n' for name in ("journal", "paging"))
    text = f'name = "b"\ndata_dir = "{places["data"]}"\nstop_timeout = -1\n[directories]\n{outside}'
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_broker(tmp_path / "b.toml")
    keys = [key for _, _, key, _ in caught.value.problems]
    assert keys == ["data_dir", "data_dir", "stop_timeout", "directories.journal", "directories.paging"]


def test_certificates_that_are_not_there_are_found_by_the_check(tmp_path: Path) -> None:
    authority = Authority("config")
    certificate = authority.issue(tmp_path / "broker.pem", "127.0.0.1")
    authorities = authority.write(tmp_path / "authority.pem")

    def with_tls(tls: str) -> str:
        return f'name = "b"\ndata_dir = false\n[[acceptors]]\nurl = "tls://127.0.0.1:0"\ntls = {{ {tls} }}\n'

    good = f'certificate = "{certificate}", authorities = "{authorities}"'
    assert problem(tmp_path / "b.toml", with_tls(good), check_broker) == ""
    bad = {
        'certificate = "/nowhere/cert.pem"': "/nowhere/cert.pem",
        f'certificate = "{certificate}", key = "/nowhere/key.pem"': str(certificate),
        f'certificate = "{certificate}", authorities = "/nowhere/ca.pem"': "/nowhere/ca.pem",
        f'certificate = "{authorities}"': str(authorities),
    }
    for tls, named in bad.items():
        said = problem(tmp_path / "b.toml", with_tls(tls), check_broker)
        assert named in said and "PEM" in said, said
        # To load it touches no such file: these are read when the broker starts.
        assert problem(tmp_path / "b.toml", with_tls(tls)) == ""
