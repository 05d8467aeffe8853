"""The layers: who may import whom.  A new edge is a decision, with a page in docs/decisions/."""

from __future__ import annotations

#: Pure data and pure functions.
VOCABULARY = (
    frozenset({"errors", "limits", "ids", "message", "selector", "address", "endpoint", "settings"})
    # What settings and notifications are made of stands beside them.
    | {"permissions", "notifications", "directories", "statistics", "lifecycle"}
)
GROUND = VOCABULARY | {"abc", "logs", "loops", "concurrency"}

_BROKER = GROUND | {"store", "wire"}
_CLIENT = GROUND | {"env", "discovery", "lb", "wire"}
_BELOW_NODE = GROUND | {
    "env",
    "store",
    "wire",
    "lb",
    "discovery",
    "broker",
    "client",
    "bridge",
    "network",
    "cluster",
    "ha",
    "lb.balancer",
    "portal",
}
_APPLICATION = _BELOW_NODE | {"__init__", "node", "console", "config", "cli", "demo", "blocking", "aio"}

#: Unit -> the units that its files may import.  A unit may always import itself.
#: ``env`` is imported where a default is made of it, by what can be used alone: store, client, node, and in ``ha`` the
#: providers of quorums.
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(sorted(VOCABULARY), VOCABULARY),
    "abc": VOCABULARY,
    "logs": frozenset(),
    "loops": VOCABULARY,
    "concurrency": VOCABULARY,
    "env": GROUND,
    "wire": GROUND,
    "lb": GROUND,
    "store": GROUND | {"env"},
    "discovery": GROUND | {"env", "wire"},
    "broker": _BROKER,
    "client": _CLIENT,
    "bridge": GROUND | {"client", "discovery"},
    "network": GROUND | {"bridge", "client", "discovery"},
    "cluster": GROUND | {"bridge", "client", "discovery", "lb", "wire"},
    "lb.balancer": GROUND | {"cluster", "discovery", "client", "lb"},
    "ha": GROUND | {"cluster", "client", "discovery", "env", "store", "wire"},
    "node": _BELOW_NODE,
    "portal": GROUND | {"env", "client"},
    "blocking": GROUND | {"env", "client", "cluster", "discovery", "lb", "lb.balancer", "network", "node", "portal"},
    "aio": GROUND | {"env", "client", "cluster", "discovery", "lb", "lb.balancer", "network", "node", "portal"},
    "spark": GROUND | {"blocking", "client"},
    # What Spark finds by its name: a package of its own beside meshq.
    "pyspark_meshq": frozenset({"spark"}),
    "console": GROUND | {"client", "node"},
    "config": _BELOW_NODE | {"node"},
    "cli": _APPLICATION,
    "demo": _APPLICATION,
    "__main__": _APPLICATION | {"testing"},
    "testing": GROUND | {"env", "wire", "store", "client", "cluster", "ha", "node", "blocking"},
    # The lazy table: it names modules as strings; the type checker sees the imports.
    "__init__": GROUND
    | {"config", "node", "client", "store", "lb", "lb.balancer", "discovery", "bridge", "cluster", "ha", "network"},
}

#: The rooms of the broker; each may import those before it.
_BROKER_ROOMS = (
    *("bodies", "records", "cursors", "stages", "queue", "events", "work", "log", "catalog", "access", "network"),
    *("ingress", "settlement", "paging", "replay", "staging", "transactions"),
    *("core", "management", "session", "connection"),
)
#: Package -> its rooms, from the ground up -> the rooms that each may import, also under ``TYPE_CHECKING``.  The files
#: at the top of a package are a room with the package's name, and so are the names that its ``__init__`` passes on.
ROOMS: dict[str, dict[str, frozenset[str]]] = {
    "qa": {
        "checkers": frozenset(),
        "simulation": frozenset({"checkers"}),
        "mesh": frozenset({"checkers", "simulation"}),
        "chain": frozenset({"checkers", "simulation"}),
        "ha": frozenset({"checkers", "simulation"}),
        "quorum": frozenset({"qa"}),
        "promises": frozenset({"simulation", "ha"}),
        "balanced": frozenset({"checkers", "simulation"}),
        "network": frozenset({"checkers", "simulation"}),
        "fanout": frozenset({"checkers", "simulation"}),
        "journal": frozenset({"qa"}),
        "grouping_model": frozenset({"checkers", "simulation"}),
        "seeded": frozenset({"qa"}),
        "matrix": frozenset({"qa", "seeded", "simulation", "ha"}),
        "mutants": frozenset({"qa"}),
        "fuzz": frozenset({"qa"}),
        "pairs": frozenset({"qa"}),
        "qa": frozenset(
            {"checkers", "simulation", "mesh", "chain", "balanced", "network", "fanout", "grouping_model", "ha"}
        ),
        "spark": frozenset({"qa"}),
    },
    "client": {
        "settings": frozenset(),
        "calls": frozenset({"settings"}),
        "outgoing": frozenset({"settings", "calls"}),
        "incoming": frozenset({"calls"}),
        "session": frozenset({"settings", "calls", "outgoing", "incoming"}),
        "link": frozenset({"settings", "calls", "session"}),
        "send": frozenset({"calls", "outgoing", "session"}),
        "receive": frozenset({"calls", "incoming", "session"}),
        "admin": frozenset({"session"}),
        "transactions": frozenset({"calls", "incoming", "session", "send", "receive", "admin"}),
        "client": frozenset(
            {"settings", "calls", "outgoing", "incoming", "session"}
            | {"link", "send", "receive", "admin", "transactions"}
        ),
    },
    "store": {
        "formats": frozenset(),
        "directory": frozenset({"formats"}),
        "bodies": frozenset({"formats", "directory"}),
        "segments": frozenset({"formats", "directory"}),
        "recovery": frozenset({"formats", "directory", "segments"}),
        "inspection": frozenset({"formats", "directory", "bodies", "segments", "recovery"}),
        "allocation": frozenset({"formats", "directory", "segments"}),
        "commit": frozenset({"formats", "directory", "segments", "recovery", "allocation"}),
        "maintenance": frozenset({"formats", "directory", "segments", "allocation", "commit"}),
        "reading": frozenset({"formats", "segments", "recovery", "commit"}),
        "store": frozenset(
            {"formats", "directory", "bodies", "segments", "recovery"}
            | {"inspection", "allocation", "commit", "maintenance", "reading"}
        ),
    },
    "broker": {
        **{room: frozenset(_BROKER_ROOMS[:index]) for index, room in enumerate(_BROKER_ROOMS)},
        "broker": frozenset(_BROKER_ROOMS),
    },
}

#: Files whose name ends so decide, and do nothing else.
PURE_SUFFIXES = ("_machine.py", "_plan.py", "_format.py")
PURE_UNITS = VOCABULARY | {"wire", "lb"}
#: The outside world: a decider gets `now` and random bits as arguments.
IMPURE_MODULES = frozenset(
    {"trio", "time", "random", "os", "socket", "threading", "asyncio", "logging", "secrets", "uuid", "ssl"}
    | {"subprocess", "multiprocessing", "concurrent", "select", "selectors", "signal", "tempfile", "shutil"}
)

#: Who may use what of the outside world.  ``testing`` puts fakes in its place, and runs brokers in processes, as the
#: applications do.
OUTSIDE_WORLD: dict[str, frozenset[str]] = {
    "env": IMPURE_MODULES - {"asyncio", "uuid", "multiprocessing"},
    "abc": frozenset({"random"}),
    "aio": frozenset({"asyncio", "threading"}),
    "blocking": frozenset({"threading"}),
    "spark": frozenset({"signal", "time", "uuid"}),
    "portal": frozenset({"threading"}),
    "config": frozenset({"os"}),
    "cli": frozenset({"os", "signal", "time", "asyncio"}),
    "demo": frozenset({"os", "signal", "subprocess", "tempfile", "shutil", "time", "multiprocessing"}),
    "__main__": frozenset({"os", "signal"}),
    "testing": frozenset(
        {"logging", "os", "random", "secrets", "shutil", "signal", "socket", "subprocess", "threading", "time", "trio"}
        | {"uuid", "concurrent", "multiprocessing"}
    ),
}
#: Of ``os``, what only says what a path is.
PATHS_OF_OS = frozenset({"PathLike", "fspath"})
#: Of ``ssl``, what only says what a setting is, for a type checker.
TYPES_OF_SSL = frozenset({"SSLContext"})
#: Open to everybody who is no decider.
EVERYBODYS = frozenset({"trio", "logging"})

#: What the core depends on, and which unit may use what beyond that: the dependencies of the extra of its name, or of
#: the one that it has here.
CORE_DEPENDENCIES = frozenset({"trio", "attrs", "msgpack", "cryptography", "outcome"})
EXTRA_DEPENDENCIES: dict[str, frozenset[str]] = {
    "demo": frozenset({"rich"}),
    "config": frozenset({"cattrs"}),
    "discovery": frozenset({"zeroconf"}),
    "ha": frozenset({"kazoo"}),
    "spark": frozenset({"pyspark", "pyarrow"}),
    "testing": frozenset({"pytest", "pytest_trio", "trustme"}),
}
EXTRA_NAMES: dict[str, str] = {"discovery": "zeroconf", "ha": "zookeeper"}
