"""What no file of the project may say: it speaks of itself alone, and of nobody's machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from tests.tidy.sources import Problem

#: Hosts that the project may name.  Whoever adds one says why here.
HOSTS = frozenset(
    {
        "www.apache.org",  # the licence
        "activemq.apache.org",  # names of the schemas in the settings of ActiveMQ, which nobody fetches
        "www.springframework.org",
        "www.w3.org",
        "localhost",
        "example.com",
        "example.org",
        "127.0.0.1",
        "0.0.0.0",
    }
)
#: Addresses that are nobody's: the one after the last loopback address, and two private ones of worked examples.
ADDRESSES = frozenset({"128.0.0.1", "172.16.9.3", "172.16.9.7"})
_URL = re.compile(r"\b(?:https?|git|ssh|ftp)://(?:[^/\s@\"'`]*@)?(\[[^\]\s]+\]|[A-Za-z0-9.-]+)")
#: Four numbers with dots that are no version: with a scheme, a port, or in quotes.
_ADDRESS = re.compile(r"(?<![\w.])(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?![\w.])")
_PATH = re.compile(
    r"(?<![\w.~*}\])-])/(?:" + "|".join(["work", "root", "opt", "home", "Users", "srv", "mnt"]) + r")/\w+"
)
_INDEX = re.compile("|".join(["--(?:extra-)?index" + "-url", "--find" + "-links", "PIP_(?:EXTRA_)?INDEX" + "_URL"]))
_LATER = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
#: Who or what typed a line is no part of the project.
_MAKERS = re.compile(
    "|".join(["sub-?" + "agent", r"\bco-?" + "pilot", "language" + " model", r"\bas an" + " AI"]), re.I
)


#: ``import meshq.x._y``, ``from meshq.x._y import Z``, ``from meshq.x import _y``, and what a page draws from a module.
_PRIVATE_IMPORT = re.compile(
    r"^\s*(?:import|from)\s+meshq[\w.]*\._"
    r"|^\s*from\s+meshq[\w.]*\s+import\s[\w\s(),]*(?<!\w)_\w"
    r"|^\.\. auto\w+:: meshq[\w.]*\._"
)
_FENCE = re.compile(r"^```", re.M)


def _foreign(address: str) -> bool:
    """Whether this is the address of a real machine: not loopback, unset, multicast, reserved or for documents."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    documentation = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]
    known = (
        address in ADDRESSES or parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast or parsed.is_reserved
    )
    return not known and not any(parsed in network for network in documentation)


def private_import_problems(path: str, text: str) -> Iterator[Problem]:
    """Code that users read imports what users may import: in a page, the code between fences."""
    fenced = path.endswith(".py")
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif fenced and _PRIVATE_IMPORT.match(line):
            yield Problem(path, number, f"imports a private module: {line.strip()}")


def text_problems(path: str, text: str) -> Iterator[Problem]:
    """Hosts, addresses and paths of some machine, package indexes, and work left for later."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _URL.finditer(line):
            if match[1] not in HOSTS:
                yield Problem(path, number, f"names the host {match[1]}: see HOSTS in tests/tidy/texts.py")
        for match in _ADDRESS.finditer(line):
            if _foreign(match[1]):
                yield Problem(path, number, f"has the address {match[1]} of somebody's machine")
        for pattern, message in (
            (_PATH, "has a path of somebody's machine"),
            (_INDEX, "names a package index: that is the environment's business"),
            (_LATER, "leaves work for later: do it, or say in the docs that it is not done"),
            (_MAKERS, "speaks of who typed it"),
        ):
            if match := pattern.search(line):
                yield Problem(path, number, f"{message}: {match[0]}")
