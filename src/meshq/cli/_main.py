"""``meshq run``, ``meshq check-config`` and ``meshq explain-permissions``.

Exit status: 0 when all is well, 1 when the file is wrong or the broker has failed, 2 when the command was called
wrongly; 128 and the signal's number when a second signal did not wait for a clean stop.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import click
import trio

from meshq.cli._serving import SIGNALLED, serve
from meshq.config import check_broker, load_broker
from meshq.errors import ConfigError, SettingsError
from meshq.node import Broker


def main(arguments: list[str]) -> int:
    """Carry out a command; returns the exit status."""
    try:
        status = _group.main(arguments, prog_name="meshq", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return SIGNALLED + signal.SIGINT
    return status if isinstance(status, int) else 0


@click.group("meshq")
def _group() -> None:
    """meshq: a durable message broker."""


@_group.command()
@click.argument("file", type=click.Path())
def run(file: str) -> None:
    """Run the broker that FILE describes, until SIGTERM or Ctrl-C.

    The first signal stops it cleanly, within its stop_timeout; a second one at once.
    """
    broker = _loaded(file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    failure = trio.run(serve, broker)
    if failure is not None:
        raise click.ClickException(str(failure))


@_group.command("check-config")
@click.argument("file", type=click.Path())
def check_config(file: str) -> None:
    """Check FILE: list each wrong key with its line and the allowed values.

    The files that it names are looked at, too: secrets, certificates, keys and authorities.
    """
    broker = _loaded(file, check_broker)
    click.echo(f"{file}: {broker!r}")


@_group.command("explain-permissions")
@click.argument("file", type=click.Path())
@click.argument("user")
@click.argument("address")
def explain_permissions(file: str, user: str, address: str) -> None:
    """Explain the permissions of USER at ADDRESS of the broker in FILE, with the roles and pattern that grant them.

    A queue is judged by its address.
    """
    security = _loaded(file).security
    if security is None:
        click.echo("everybody may do everything: the broker has no users")
        return
    try:
        click.echo(str(security.explain(user, address)))
    except SettingsError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(1) from error


def _loaded(file: str, load: Callable[[str], Broker] = load_broker) -> Broker:
    try:
        return load(file)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(1) from error
