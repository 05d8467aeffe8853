"""Loads a broker from a file."""

from __future__ import annotations

import os
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from meshq.config._lines_format import KeyLines
from meshq.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from meshq.ha import QuorumNode
    from meshq.node import Broker


def load_broker(path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> Broker:
    """The broker that a file in TOML describes, as if it had been built in a program; it is not started.

    A witness of a quorum that the file describes, too, is checked and left out: ``meshq run`` starts both.

    The keys are those of ``Broker`` and of the settings that it takes.  ``environ``: where ``{ env = "NAME" }`` looks;
    the environment of this process unless given.

    Raises:
        ConfigError: the file can't be read, or says what is not allowed; it names every such key and its line.
        UsageError: cattrs is not installed.
    """
    return _broker(path, environ, files=False)


def load_nodes(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, files: bool = False
) -> tuple[QuorumNode | Broker, ...]:
    """The witness of a quorum and the broker that a file describes, in the order in which they are started.

    ``files``: certificates, keys and authorities are read, too.

    Raises:
        ConfigError: as ``load_broker``.
        UsageError: cattrs is not installed.
    """
    return _load(os.fspath(path), os.environ if environ is None else environ, files=files)


def check_broker(path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> Broker:
    """The same as ``load_broker``, if certificates, keys and authorities can be read, too.

    Raises:
        ConfigError: as ``load_broker``; or such a file is not there, or can't be used.
        UsageError: cattrs is not installed.
    """
    return _broker(path, environ, files=True)


def _broker(path: str | os.PathLike[str], environ: Mapping[str, str] | None, *, files: bool) -> Broker:
    from meshq.node import Broker

    found = load_nodes(path, environ=environ, files=files)[-1]
    if not isinstance(found, Broker):
        raise ConfigError([(os.fspath(path), 1, "", "describes a witness of a quorum, and no broker")])
    return found


def _load(file: str, environ: Mapping[str, str], *, files: bool) -> tuple[QuorumNode | Broker, ...]:
    try:
        from meshq.config._reader import Reader
    except ModuleNotFoundError as error:
        if error.name != "cattrs":
            raise
        raise UsageError("configuration from a file needs cattrs: pip install 'meshq[config]'") from error
    lines, table = _read(file)
    reader = Reader(lines, environ, files=files)
    nodes = reader.nodes(table)
    if not nodes:
        raise ConfigError([(file, *problem) for problem in sorted(reader.problems, key=lambda one: one[0])])
    return nodes


def _read(file: str) -> tuple[KeyLines, dict[str, object]]:
    try:
        text = pathlib.Path(file).read_bytes().decode()
    except OSError as error:
        raise ConfigError([(file, 1, "", f"can't be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([(file, line, "", "is not UTF-8")]) from error
    try:
        table = tomllib.loads(text)
        return KeyLines(text.replace("\r\n", "\n")), table
    except RecursionError as error:
        raise ConfigError([(file, 1, "", "is no TOML that can be read: it is nested too deeply")]) from error
    except tomllib.TOMLDecodeError as error:
        # Where it is stands in the message only: "… (at line 3, column 7)", or "(at end of document)".
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found is not None else text.count("\n") + 1
        raise ConfigError([(file, line, "", f"is not TOML: {error}")]) from error
    except ValueError as error:
        # A number of thousands of digits.
        raise ConfigError([(file, 1, "", f"is no TOML that can be read: {error}")]) from error
