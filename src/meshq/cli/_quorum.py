"""``meshq quorum run`` and ``meshq quorum show``: a witness as a process, and a look at the records of witnesses."""

from __future__ import annotations

import argparse
import logging
import sys

import trio

from meshq.cli._failed import FailedError
from meshq.cli._serving import Node, serve
from meshq.config import secret_in
from meshq.env import default_env
from meshq.errors import MeshqError, SettingsError
from meshq.ha import QuorumNode
from meshq.ha.quorum.mesh import WitnessSight, look, told
from meshq.settings import TLS, Secret


def quorum(options: argparse.Namespace) -> None:
    """Run a witness of a quorum, or show the records of witnesses."""
    if options.task == "run":
        _run(options)
    else:
        _show(options)


def add_quorum(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``meshq quorum``."""
    tasks = command.add_subparsers(dest="task", required=True)
    text = "Run a witness, until SIGTERM or Ctrl-C."
    run = tasks.add_parser("run", help=text, description=text)
    run.add_argument("name", metavar="NAME", help="differs from the names of the other witnesses")
    run.add_argument("--data-dir", required=True, metavar="DIR", help="where the witness keeps what it has promised")
    run.add_argument("--url", required=True, metavar="URL", help="tls:// or tcp://HOST:PORT; port 0 for any free port")
    run.add_argument("--certificate", metavar="FILE", help="the certificate of the witness, for a tls:// URL")
    run.add_argument("--key", metavar="FILE", help="its private key, if it is not in the same file")
    text = "Print the record of each node id, and what each witness has of it; nothing is changed."
    show = tasks.add_parser("show", help=text, description=text)
    show.add_argument("urls", nargs="+", metavar="URL", help="of a witness; give those of all")
    show.add_argument("--authorities", metavar="FILE", help="who vouches for the certificates of tls:// URLs")
    for parser in (run, show):
        parser.add_argument("--password-file", required=True, metavar="FILE", help="has the password of the quorum")
        parser.add_argument("--user", default="quorum", metavar="NAME", help="the user of the quorum")
        parser.add_argument("--ensemble", default="meshq", metavar="NAME", help="the name of the whole quorum")
        parser.add_argument("--insecure", action="store_true", help="plaintext beyond this machine")


def _password(options: argparse.Namespace) -> Secret:
    try:
        return Secret(secret_in(options.password_file))
    except ValueError as error:
        raise FailedError(str(error)) from error


def _run(options: argparse.Namespace) -> None:
    if options.url.startswith("tls:") and options.certificate is None:
        raise FailedError("a tls:// URL needs --certificate FILE, and --key FILE unless the key is in the same file")
    node = QuorumNode(
        options.name,
        data_dir=options.data_dir,
        acceptors=[options.url],
        password=_password(options),
        user=options.user,
        ensemble=options.ensemble,
        tls=TLS(certificate=options.certificate, key=options.key) if options.certificate or options.key else None,
        insecure=options.insecure,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    failure = trio.run(serve, [node], _say_ready)
    if failure is not None:
        raise FailedError(str(failure)) from failure


def _say_ready(node: Node) -> None:
    print(f"quorum {node.name} ready at {', '.join(node.urls)}", flush=True)


def _show(options: argparse.Namespace) -> None:
    seen, failures = trio.run(_look_at_all, options, _password(options))
    if seen:
        print("\n".join(told(seen)))
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        raise FailedError(f"{len(failures)} of {len(options.urls)} witnesses did not answer")


async def _look_at_all(options: argparse.Namespace, password: Secret) -> tuple[list[WitnessSight], list[str]]:
    seen: list[WitnessSight] = []
    failures: list[str] = []
    for url in options.urls:
        try:
            found = await look(
                url,
                password=password,
                user=options.user,
                ensemble=options.ensemble,
                tls=TLS(authorities=options.authorities) if options.authorities else None,
                insecure=options.insecure,
                env=default_env(),
            )
        except SettingsError:
            raise
        except MeshqError as error:
            failures.append(f"{url}: {error}")
        else:
            seen.append(found)
    return seen, failures
