"""The reader of TOML files: turns tables into settings objects, and lists every wrong key with its line."""

from __future__ import annotations

import ast
import os
import typing
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import cattrs

from meshq.abc import BroadcastEndpoint, HAPolicy, Service
from meshq.cluster import ClusterConnection
from meshq.config._destinations_table import DestinationsTable
from meshq.config._files import secret_in
from meshq.config._keys import (
    ENDPOINTS,
    POLICIES,
    POLICY_KEYS,
    POLICY_WORDS,
    SERVICES,
    GroupName,
    Key,
    PolicyName,
    QuorumOfPolicy,
    is_table,
    keys_of,
)
from meshq.config._kinds import (
    is_composite,
    is_mapping,
    is_sequence,
    is_set,
    is_union,
    octets,
    one_of_words,
    policy_name,
    strict,
)
from meshq.config._lines_format import KeyLines, Path, shown
from meshq.config._older_keys_format import with_policy
from meshq.config._pool_table import PoolTable
from meshq.config._problems import SECRETS, WrongTypeError, said, seen, seen_as
from meshq.config._quorum_table import CLASS, DEFAULT, HOSTS, QUORUMS, AuthTable, meant_for_votes, own_quorum, renamed
from meshq.config._units_format import in_units
from meshq.directories import StoreDirectories
from meshq.discovery import DiscoveryGroup
from meshq.env import real_env
from meshq.errors import MeshqError, SettingsError
from meshq.ha import QuorumNode
from meshq.node import Broker
from meshq.settings import TLS, Acceptor, EncryptionKey, Secret
from meshq.store import why_not_private

#: Stands for a value that could not be made, and has a problem.
MISSING: Final = object()
_SECRET = '{ env = "NAME" }, { file = "PATH" } or a text'


class Reader:
    """Reads one file; ``problems`` are (line, key, text)."""

    def __init__(self, lines: KeyLines, environ: Mapping[str, str], *, files: bool = False) -> None:
        # Whether the files of TLS are looked at, too.
        self._files = files
        self._lines = lines
        self._environ = environ
        self._path: Path = ()
        # The discovery groups of the file by name; a group with a problem of its own is ``MISSING``.
        self._groups: dict[str, object] = {}
        self.problems: list[tuple[int, str, str]] = []
        self._converter = cattrs.Converter(detailed_validation=False)
        for kind, name in ((bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "a text")):
            self._converter.register_structure_hook(kind, strict(kind, name))
        self._converter.register_structure_hook(bytes, octets)
        hooks: list[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]]] = [
            (is_set, self._set),
            (is_sequence, self._sequence),
            (is_mapping, self._mapping),
            (is_table, self.table),
            (lambda kind: kind is Service, self._service),
            (lambda kind: kind is BroadcastEndpoint, self._endpoint),
            (lambda kind: kind is HAPolicy, self._ha),
            (lambda kind: kind is QuorumOfPolicy, self._quorum),
            (lambda kind: kind is GroupName, self._group),
            (lambda kind: kind in SECRETS, self._secret),
            (is_union, self._union),
            # Of the predicates that fit the last one counts.
            (lambda kind: kind == AuthTable | None, self._auth),
            (lambda kind: kind is PoolTable, self._pool),
            (lambda kind: kind is DestinationsTable, self._destinations),
            (lambda kind: kind is PolicyName, policy_name),
            (lambda kind: typing.get_origin(kind) is typing.Literal, one_of_words),
        ]
        for predicate, hook in hooks:
            self._converter.register_structure_hook_func(predicate, hook)

    def nodes(self, table: dict[str, Any]) -> tuple[QuorumNode | Broker, ...]:
        """The witness and the broker that the file describes, in that order; nothing if something is wrong."""
        rest, older = with_policy(table)
        if older:
            text = f"{', '.join(older)}: an older spelling; write [ha] with policy = {rest['ha']['policy']!r}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        made = [self._item("quorum", rest.pop("quorum"), QuorumNode)] if "quorum" in rest else []
        if rest or not made:
            made.append(self.table(rest, Broker))
        return () if self.problems else tuple(made)

    # -- problems

    def _problem(self, text: str, *parts: str | int) -> None:
        path = (*self._path, *parts)
        key = shown(path)
        self.problems.append((self._lines.of(path), key, f"{key}: {text}" if key else text))

    def _item(self, part: str | int, value: object, kind: Any) -> Any:
        """Convert the value of a key, or an item of a list."""
        before = self._path
        self._path = (*before, part)
        try:
            return self._converter.structure(value, kind)
        except (WrongTypeError, SettingsError) as error:
            self._problem(said(error))
            return MISSING
        finally:
            self._path = before

    # -- tables

    def table(self, value: object, kind: type[Any]) -> Any:
        """A settings object from a table."""
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen_as(kind, value)} is not allowed; allowed: a table")
        keys = keys_of(kind)
        # A policy may name a discovery group, which is a service.
        items = sorted(value.items(), key=lambda item: kind is Broker and item[0] == "ha")
        found = {name: self._value(name, item, keys) for name, item in items}
        given = {name: item for name, item in found.items() if item is not MISSING}
        whole = len(given) == len(found)
        for key in keys.values():
            if key.required and key.name not in value:
                self._problem(f"the key {key.name!r} is missing")
                whole = False
        if kind is Broker:
            self._look_at_store(found.get("data_dir"), found.get("directories"))
            self._look_at_connectors(found.get("services"), found.get("connectors", {}))
        # What is right for itself may seem wrong where something else is missing.
        lost = [keys[name] for name in found if name not in given and name in keys]
        if any(key.required and key.name not in given for key in keys.values()):
            return MISSING
        if kind is Broker and not whole:
            given = {name: item for name, item in given.items() if not is_composite(keys[name].type)}
        elif any(is_composite(key.type) for key in lost):
            return MISSING
        made = self._make(kind, given, keys)
        if self._files and isinstance(made, TLS):
            # As the broker, or a client of it, will read them.
            real_env().tls.client(made)
        return made if whole else MISSING

    def _look_at_connectors(self, services: object, connectors: object) -> None:
        """See that each connector which a service names is there and can be dialed, as a start does."""
        if not isinstance(services, tuple) or not isinstance(connectors, Mapping):
            return
        found: dict[tuple[Path, str], None] = {}
        for at, service in enumerate(services):
            for error in service.wrong_connectors(connectors, real_env()):
                name, bracket, inner = error.setting.partition("[")
                if bracket:
                    place: Path = (name, ast.literal_eval(inner.removesuffix("]")))
                else:
                    pool = getattr(service.settings, "pool", None)
                    several = getattr(pool or service.settings, name, None)
                    place = (
                        "services",
                        at,
                        *(("pool",) if pool is not None else ()),
                        name,
                        *((several.index(error.value),) if isinstance(several, tuple) else ()),
                    )
                # A connector may be that of several services.
                found[place, said(error)] = None
        for place, text in found:
            self._problem(text, *place)

    def _look_at_store(self, data_dir: object, directories: object) -> None:
        """See that a start would take the directories of the store, as far as they are there."""
        if not isinstance(data_dir, str):
            return
        outside = directories if isinstance(directories, StoreDirectories) else StoreDirectories()
        try:
            for setting, _, why in why_not_private(real_env().disk, data_dir, outside):
                self._problem(why, *setting.split("."))
        except OSError as error:
            self._problem(f"{error.filename} can't be looked at: {error.strerror}", "data_dir")

    def _value(self, name: str, value: object, keys: dict[str, Key]) -> Any:
        key = keys.get(name)
        if key is None:
            (nearest,) = get_close_matches(name, keys, n=1, cutoff=0.0)
            self._problem(f"is not known; the nearest known key is {nearest!r}", name)
            return MISSING
        if not key.settable:
            self._problem("can't be given in a file", name)
            return MISSING
        if isinstance(value, str) and key.units is not None:
            number = in_units(value, key.units)
            if number is None:
                allowed = ", ".join(key.units)
                self._problem(f"{value!r} is not allowed; allowed: a number, or one with a unit ({allowed})", name)
                return MISSING
            value = number
        return self._item(name, value, key.type)

    def _make(self, kind: type[Any], given: dict[str, Any], keys: dict[str, Key]) -> Any:
        """Make the object; note each wrong key as a problem, and check the other keys without it."""
        whole = True
        removed: list[Path] = []
        while True:
            try:
                made = kind(**given)
            except MeshqError as error:
                whole = False
                setting = getattr(error, "setting", None)
                place = self._place(setting, getattr(error, "value", None), given, keys)
                if place[:1] not in removed:
                    self._problem(said(error), *place)
                if setting not in given or keys[setting].required:
                    return MISSING
                removed.append((str(setting),))
                del given[setting]
            else:
                return made if whole else MISSING

    def _place(self, setting: object, value: object, given: dict[str, Any], keys: dict[str, Key]) -> Path:
        """Return the path of the setting that an error names, such as ``connectors['a']``, from this table on."""
        whole, bracket, inner = str(setting).partition("[")
        name = whole.rpartition(".")[2]
        if name in keys:
            if bracket:
                return name, ast.literal_eval(inner.removesuffix("]"))
            several = given.get(name)
            if isinstance(value, str) and isinstance(several, Mapping) and value in several:
                return name, value
            if isinstance(several, tuple) and value in several:
                return name, several.index(value)
            return (name,)
        return _said_by_the_broker(name, value, given)

    def _service(self, value: object, kind: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen_as(kind, value)} is not allowed; allowed: a table")
        rest = dict(value)
        name = rest.pop("kind", None)
        if not isinstance(name, str) or name not in SERVICES:
            known = " or ".join(map(repr, SERVICES))
            self._problem(f"{seen(name)} is not allowed; allowed: {known}", "kind")
            return MISSING
        made = self.table(rest, SERVICES[name])
        if name == DiscoveryGroup.kind and isinstance(rest.get("name"), str):
            self._groups[rest["name"]] = made
        return made

    def _endpoint(self, value: object, kind: Any) -> Any:
        """Make the endpoint of a group: a table that has one table, named by the kind of the endpoint."""
        kinds = ", ".join(ENDPOINTS)
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen(value)} is not allowed; allowed: a table with one of the tables {kinds}")
        unknown = [name for name in value if name not in ENDPOINTS]
        for name in unknown:
            self._problem(f"is no kind of endpoint; allowed: one of {kinds}", name)
        if unknown:
            return MISSING
        if len(value) != 1:
            given = " and ".join(value) or "none of them"
            raise WrongTypeError(f"{given} is not allowed; allowed: exactly one of {kinds}")
        ((name, table),) = value.items()
        return self._item(name, table, ENDPOINTS[name])

    def _ha(self, value: object, kind: Any) -> Any:
        """Make a policy of high availability: a table that names it, and has its settings."""
        known = ", ".join(POLICIES)
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen(value)} is not allowed; allowed: a table with a policy")
        rest = dict(value)
        given = rest.pop("policy", None)
        name = given
        for word, meant in POLICY_WORDS.items() if isinstance(given, str) and given not in POLICIES else ():
            name = given.removesuffix(word) + meant if given.endswith(f"_{word}") else name
        if not isinstance(name, str) or name not in POLICIES:
            if "policy" in value:
                self._problem(f"{seen(given)} is not allowed; allowed: {known}", "policy")
            else:
                self._problem(f"the key 'policy' is missing; allowed: {known}")
            return MISSING
        for alias, meant in POLICY_KEYS.items():
            if alias in rest and meant in rest:
                self._problem(f"is the same as {meant!r}, which is there, too", alias)
                return MISSING
            if alias in rest:
                rest[meant] = rest.pop(alias)
        for key in [one for one in rest if meant_for_votes(one)]:
            self._problem(f"stands in the table 'quorum' of the policy, as {meant_for_votes(key)!r}", key)
            del rest[key]
        return self.table(rest, POLICIES[name])

    def _quorum(self, value: object, kind: Any) -> Any:
        """Make the quorum of a policy: a table that names its kind, or a class of one's own."""
        known = ", ".join(QUORUMS)
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen(value)} is not allowed; allowed: a table of one kind: {known}")
        rest = dict(value)
        properties = rest.pop("properties", {})
        if not isinstance(properties, dict):
            raise WrongTypeError(f"{seen(properties)} is not allowed as properties; allowed: a table")
        if own := [rest.pop(name) for name in CLASS if name in rest]:
            if rest:
                raise WrongTypeError(f"{', '.join(rest)}: not beside a class; allowed: class_name and properties")
            return own_quorum(own[0], properties)
        if "kind" not in rest and not HOSTS & {*rest, *properties}:
            self._problem(f"the key 'kind' is missing; allowed: {known}")
            return MISSING
        name = rest.pop("kind", DEFAULT)
        if not isinstance(name, str) or name not in QUORUMS:
            self._problem(f"{seen(name)} is not allowed; allowed: {known}", "kind")
            return MISSING
        return self.table(renamed({**rest, **properties}), QUORUMS[name])

    def _auth(self, value: object, kind: Any) -> Any:
        """Make the user and the password of an ensemble."""
        made = self.table(value, AuthTable)
        return made if made is MISSING else (made.user, made.password)

    def _group(self, value: object, kind: Any) -> Any:
        """Find a discovery group by its name."""
        known = ", ".join(map(repr, sorted(self._groups))) or "none"
        allowed = f"the name of a discovery_group of this file; known: {known}"
        if type(value) is not str or value not in self._groups:
            raise WrongTypeError(f"{seen(value)} is not allowed; allowed: {allowed}")
        return self._groups[value]

    def _pool(self, value: object, kind: Any) -> Any:
        """Make the pool of a balancer: its table names one source."""
        made = self.table(value, PoolTable)
        return made if made is MISSING else made.pool()

    def _destinations(self, value: object, kind: Any) -> Any:
        """Make destinations of a network connector: their table names queues or topics."""
        made = self.table(value, DestinationsTable)
        return made if made is MISSING else made.destinations()

    # -- several

    def _sequence(self, value: object, kind: Any) -> Any:
        if not isinstance(value, list):
            raise WrongTypeError(f"{seen_as(kind, value)} is not allowed; allowed: a list")
        (inner, *_) = typing.get_args(kind)
        # A service may name a group that stands behind the service.
        places = sorted(range(len(value)), key=lambda at: inner is Service and not _is_group(value[at]))
        made = {at: self._item(at, value[at], inner) for at in places}
        found = [made[at] for at in range(len(value))]
        return MISSING if MISSING in found else tuple(found)

    def _set(self, value: object, kind: Any) -> Any:
        found = self._sequence(value, kind)
        return found if found is MISSING else frozenset(found)

    def _mapping(self, value: object, kind: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongTypeError(f"{seen_as(kind, value)} is not allowed; allowed: a table")
        found = {name: self._item(name, item, typing.get_args(kind)[1]) for name, item in value.items()}
        return MISSING if MISSING in found.values() else found

    # -- one

    def _union(self, value: object, kind: Any) -> Any:
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        secret = next((one for one in kinds if one in SECRETS), None)
        if secret is not None:
            return self._secret(value, secret)
        if any(typing.get_origin(one) is os.PathLike for one in kinds):
            in_memory = ", or false for memory only" if type(None) in typing.get_args(kind) else ""
            if value is False and in_memory:
                return None
            if not isinstance(value, str) or not value or "\0" in value:
                raise WrongTypeError(f"{seen(value)} is not allowed; allowed: a directory{in_memory}")
            return value
        if Acceptor in kinds and isinstance(value, str):
            # A witness gives its own ``tls`` and ``insecure`` to such acceptors.
            return value if self._path[0] == "quorum" else Acceptor(value)
        if Acceptor in kinds:
            return self.table(value, Acceptor)
        return self._converter.structure(value, kinds[0])

    def _secret(self, value: object, kind: type[Secret | EncryptionKey]) -> Any:
        if isinstance(value, str):
            return kind(value)
        if not isinstance(value, dict) or len(value) != 1 or not isinstance(next(iter(value.values())), str):
            raise WrongTypeError(f"allowed: {_SECRET}")
        ((where, name),) = value.items()
        if where == "env":
            if name not in self._environ:
                raise WrongTypeError(f"the environment has no {name}")
            return kind(self._environ[name])
        if where == "file":
            try:
                return kind(secret_in(name))
            except ValueError as error:
                raise WrongTypeError(str(error)) from None
        raise WrongTypeError(f"allowed: {_SECRET}")


def _said_by_the_broker(name: str, value: object, given: Mapping[str, Any]) -> Path:
    """Return the path of a setting that a broker finds wrong when it compares all of them."""
    acceptors, services = given.get("acceptors", ()), given.get("services", ())
    found: list[Path] = []
    if name in ("acceptor", "url"):
        found = [("acceptors", at) for at, one in enumerate(acceptors) if getattr(one, "url", one) == value]
    elif name == "discovery":
        found = [("acceptors", at, name) for at, one in enumerate(acceptors) if one.discovery == value]
    elif name == "redirect_to":
        found = [("acceptors", at) for at, one in enumerate(acceptors) if one.redirect_to == value]
    elif name == "cluster_connection":
        found = [("services", at, "pool", name) for at, one in enumerate(services) if one.kind == "broker_balancer"]
    elif name == "certificates":
        found = [("security", name)]
    elif name == "static_connectors":
        found = [("services", at, name) for at, one in enumerate(services) if one.kind == "cluster_connection"]
    elif name == "password":
        found = [("services", at, name) for at, one in enumerate(services) if _exposed(one)]
    elif name == "connector":
        # Only a cluster connection that names none has to do with the acceptors.
        unnamed = (isinstance(one, ClusterConnection) and one.settings.connector is None for one in services)
        found = [("services", at, name) for at, one in enumerate(unnamed) if one]
    return found[0] if found else ()


def _is_group(value: object) -> bool:
    """Whether a table describes a discovery group."""
    return isinstance(value, dict) and value.get("kind") == DiscoveryGroup.kind


def _exposed(service: Service) -> bool:
    """Whether a service forbids its broker to listen to other machines."""
    try:
        service.check_exposure(loopback=False)
    except SettingsError:
        return True
    return False
