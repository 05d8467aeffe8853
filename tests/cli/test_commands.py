"""The command line: what it says, and with which status it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshq import TLS, Acceptor, QuorumNode
from meshq.__main__ import main
from meshq.testing.new_test import NEW_TEST
from tests.env.authorities import Authority


def test_a_good_file_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('name = "hq"\ndata_dir = "data"')
    assert main(["check-config", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: <Broker 'hq' new durable=True>\n", "")
    assert not (tmp_path / "data").exists()


def test_a_file_is_printed_as_it_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.toml"
    text = 'name = "hq"\ndata_dir = "data"\nstop_timeout = "2 s"\ntransaction_timeout = 300'
    file.write_text(f'{text}\n[security]\nusers = {{ app = "secret" }}\n')
    assert main(["check-config", str(file), "--print"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# These variables have to be set when this file is read:",
        *("# MESHQ_SECURITY_USERS_APP: security.users.app", ""),
        *('name = "hq"', 'data_dir = "data"', "stop_timeout = 2", ""),
        *("[security.users]", 'app = { env = "MESHQ_SECURITY_USERS_APP" }'),
    ]


@pytest.mark.parametrize("command", ["run", "check-config"])
def test_a_bad_file_is_told_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('name = "hq"\nquees = []\nstop_timeout = -1')
    assert main([command, str(file)]) == 1
    assert capsys.readouterr() == (
        "",
        f"{file}:1: the key 'data_dir' is missing\n{file}:2: quees: is not known; the nearest known key is 'queues'\n",
    )


def test_a_certificate_that_is_not_there_is_found_by_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.toml"
    acceptor = '[[acceptors]]\nurl = "tls://127.0.0.1:61616"\ntls = { certificate = "/nowhere/cert.pem" }'
    file.write_text(f'name = "hq"\ndata_dir = false\n{acceptor}')
    assert main(["check-config", str(file)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("/nowhere/cert.pem")) == ("", 1)


def test_a_first_test_is_printed_or_written_and_never_over_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-test"]) == 0
    assert capsys.readouterr() == (NEW_TEST, "")
    file = tmp_path / "test_orders.py"
    assert main(["new-test", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: run it with: pytest {file}\n", "")
    assert file.read_text() == NEW_TEST
    file.write_text("mine")
    assert main(["new-test", str(file)]) == 1
    assert capsys.readouterr() == ("", f"{file}: it exists, and is never overwritten\n")
    assert file.read_text() == "mine"
    assert main(["new-test", str(tmp_path / "no" / "x.py")]) == 1
    assert main(["new-test", "--bogus"]) == 2
    assert main(["new-test", "--help"]) == 0


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["walk"], 2), (["run"], 2), (["--help"], 0)])
def test_whoever_calls_it_wrongly_is_told_how(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    assert main(arguments) == status
    assert "usage: meshq" in "".join(capsys.readouterr()).lower()


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("meshq.cli", "meshq.config", "cattrs"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cattrs", None)
    file = tmp_path / "broker.toml"
    file.write_text('name = "hq"\ndata_dir = false')
    assert main(["check-config", str(file)]) == 2
    assert "pip install 'meshq[c" in capsys.readouterr().err


PERMISSIONS = """
name = "hq"
data_dir = false

[security.users]
app = "secret"
boss = "secret"

[security.roles]
app = ["writers", "readers"]
boss = ["owners"]

[security.permissions."orders.#"]
send = ["writers"]
consume = ["readers", "owners"]
manage = ["owners"]

[security.permissions."#"]
send = ["owners"]
"""


def test_what_a_user_may_do_at_an_address_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(PERMISSIONS)
    assert main(["explain-permissions", str(file), "app", "orders.eu"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "'app' has the roles readers, writers",
        "at 'orders.eu' the pattern 'orders.#' holds; less specific, and without effect: #",
        "send     yes, by writers",
        "consume  yes, by readers",
        "create   no, the pattern gives it to no role",
        "manage   no, that takes owners",
        "browse   no, the pattern gives it to no role",
    ]
    assert main(["explain-permissions", str(file), "nobody", "orders.eu"]) == 1
    assert "users that there are: 'app', 'boss'" in capsys.readouterr().err
    assert main(["explain-permissions", str(file), "app", ""]) == 1
    assert "address=" in capsys.readouterr().err


def test_where_nothing_is_restricted_the_explanation_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('name = "hq"\ndata_dir = false')
    assert main(["explain-permissions", str(file), "app", "orders"]) == 0
    assert capsys.readouterr().out == "everybody may do everything: the broker has no users\n"
    file.write_text('name = "hq"\ndata_dir = false\n[security.users]\napp = "secret"')
    assert main(["explain-permissions", str(file), "app", "orders"]) == 0
    assert capsys.readouterr().out == "'app' may do everything: there are no permissions\n"


def test_a_witness_that_can_not_begin_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    there = ["--password-file", str(password)]
    assert main(["quorum", "show", "tcp://127.0.0.1:1", *there]) == 1
    assert capsys.readouterr().err == f"Error: {password} can't be read: No such file or directory\n"
    password.write_text("secret")
    assert main(["quorum", "show", "tcp://192.0.2.1:1", *there]) == 1
    assert "allowed: a loopback host" in capsys.readouterr().err
    run = ["quorum", "run", "w0", "--data-dir", str(tmp_path / "w0"), "--url"]
    assert main([*run, "tcp://192.0.2.1:1", *there]) == 1
    assert "a loopback host" in capsys.readouterr().err
    assert main([*run, "tcp://127.0.0.1:0"]) == 2
    assert main(["quorum"]) == 2
    assert not (tmp_path / "w0").exists()


def test_a_witness_with_a_tls_url_has_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[QuorumNode] = []
    monkeypatch.setattr("trio.run", lambda _, nodes, __: served.extend(nodes))
    password = tmp_path / "password"
    password.write_text("secret")
    run = ["quorum", "run", "w0", "--data-dir", str(tmp_path / "w0"), "--password-file", str(password), "--url"]
    assert main([*run, "tls://127.0.0.1:0"]) == 1
    assert "needs --certificate FILE, and --key FILE" in capsys.readouterr().err
    assert main([*run, "tcp://127.0.0.1:0", "--certificate", "a.pem"]) == 1
    assert main([*run, "tls://127.0.0.1:0", "--key", "a.key"]) == 1
    assert served == []
    certificate = Authority("ours").issue(tmp_path / "w0.pem", "127.0.0.1")
    assert main([*run, "tls://127.0.0.1:0", "--certificate", certificate, "--key", certificate]) == 0
    tls = TLS(certificate=certificate, key=certificate)
    assert [node.settings["acceptors"] for node in served] == [(Acceptor("tls://127.0.0.1:0", tls=tls),)]
