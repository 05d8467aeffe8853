"""The writer of configuration files: turns settings objects into the tables from which the reader makes them."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, Literal

import attrs

from meshq.abc import BalancerPolicy, BroadcastEndpoint, HAPolicy, QuorumProvider, Service
from meshq.bridge import Bridge
from meshq.cluster import ClusterConnection
from meshq.config._keys import ENDPOINTS, POLICIES, SERVICES, keys_of
from meshq.config._lines_format import shown
from meshq.config._pool_table import PoolTable
from meshq.config._quorum_table import QUORUMS, AuthTable
from meshq.config._toml_format import InLine, toml_text
from meshq.directories import StoreDirectories
from meshq.discovery import AcceptorGroup, DiscoveryGroup
from meshq.errors import SettingsError
from meshq.ha import QuorumNode, ScaleDown
from meshq.lb import NAMES, KeyFilter
from meshq.lb.balancer import Pool
from meshq.network import Destinations, NetworkConnector
from meshq.node import Broker
from meshq.permissions import Permissions
from meshq.settings import TLS, Acceptor, AddressSettings, EncryptionKey, JournalSettings, Secret, Security

#: The ways to write passwords and keys.
Secrets = Literal["env", "text"]
SECRETS: Final = ("env", "text")
#: The settings of a broker that are the same as none.
_EMPTY: Final[tuple[object, ...]] = (JournalSettings(), StoreDirectories(), {}, ())
#: Objects whose settings are a table without a kind.
TABLES: Final = (
    *(Acceptor, AddressSettings, JournalSettings, Permissions, ScaleDown, Security, StoreDirectories, TLS),
)
_ALLOWED: Final = "what a file can say, such as TLS(...) and policies by their names; a program is needed for others"

#: A URL with a password in it.
PASSWORD: Final = re.compile(r"://[^/?,)]*@|://.*[?&;]password=", re.IGNORECASE)

#: Part of a key that a variable can have as it is, but for its capitals.
PLAIN: Final = re.compile("[a-z0-9_]+")

Where = tuple[str | int, ...]


def written(nodes: Sequence[object], secrets: Secrets) -> str:
    """Return the text of a file, as ``dump_config`` says.

    Raises:
        SettingsError: as ``dump_config``.
    """
    if secrets not in SECRETS:
        raise SettingsError("secrets", secrets, " or ".join(map(repr, SECRETS)))
    brokers = [one for one in nodes if isinstance(one, Broker)]
    witnesses = [one for one in nodes if isinstance(one, QuorumNode)]
    if not nodes or len(brokers) > 1 or len(witnesses) > 1 or len(brokers) + len(witnesses) < len(nodes):
        allowed = "one meshq.Broker, none of meshq.aio or meshq.blocking; one QuorumNode; or both"
        raise SettingsError("nodes", nodes, allowed)
    writer = _Writer(secrets)
    table = writer.broker(brokers[0]) if brokers else {}
    if witnesses:
        table["quorum"] = writer.table(witnesses[0].settings, QuorumNode, ("quorum",))
    text = toml_text(table)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingsError("nodes", error.object[error.start : error.end], "texts that UTF-8 can encode") from error
    names = "".join(f"# {name}: {key}\n" for name, key in writer.variables.items())
    return f"# These variables have to be set when this file is read:\n{names}\n{text}" if names else text


class _Writer:
    """Makes tables of settings objects; ``variables`` are the names that stand for secrets, and the key of each."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.variables: dict[str, str] = {}

    def broker(self, broker: Broker) -> dict[str, Any]:
        """Return the table of a broker."""
        settings = broker._settings
        given = {one.name: getattr(settings, one.name) for one in attrs.fields(type(settings)) if one.init}
        given = {name: value for name, value in given.items() if value not in _EMPTY}
        # What announces acceptors is made of them.
        services = [one for one in settings.services if not isinstance(one, AcceptorGroup)]
        groups = [one for one in _groups_of(settings.ha) if all(one is not other for other in services)]
        given["services"] = (*services, *groups)
        if settings.data_dir is None:
            given["data_dir"] = False
        return self.table(given, Broker, ())

    def table(self, given: Mapping[str, Any], kind: type[Any], path: Where) -> dict[str, Any]:
        """Return the table of an object of a kind, of which ``given`` has the settings."""
        found: dict[str, Any] = {}
        for key in keys_of(kind).values():
            value = given.get(key.name)
            if value is None or _is_same(value, key.default):
                continue
            if not key.settable:
                raise _not_in_a_file((*path, key.name), value)
            written = self._value(value, (*path, key.name))
            if written != [] or key.required:
                found[key.name] = written
        return found

    def _value(self, value: object, path: Where) -> Any:
        """Return a value as a file has it."""
        if isinstance(value, Secret | EncryptionKey):
            return self._secret(value, path)
        if isinstance(value, str) and self._secrets == "env" and PASSWORD.search(value):
            raise SettingsError(shown(path), "***", "a URL without a password, unless secrets='text'")
        if isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, Mapping):
            return {name: self._value(one, (*path, name)) for name, one in value.items()}
        if isinstance(value, Set):
            return sorted(value)
        if isinstance(value, tuple | list):
            return self._list(value, path)
        return self._object(value, path)

    def _list(self, value: tuple[object, ...] | list[object], path: Where) -> Any:
        if path[-1:] == ("auth",):
            user, password = value
            return self.table({"user": user, "password": password}, AuthTable, path)
        found = [self._value(one, (*path, at)) for at, one in enumerate(value)]
        if all(isinstance(one, Acceptor) for one in value) and all(one.keys() == {"url"} for one in found):
            return [one["url"] for one in found]
        return found

    def _object(self, value: object, path: Where) -> Any:
        kind = type(value)
        if isinstance(value, DiscoveryGroup) and len(path) != len(("services", "0")):
            return value.name
        if isinstance(value, Service) and kind in SERVICES.values():
            named = ("services", f"{value.kind}_{value.name}")
            return {"kind": value.kind, **self.table(_settings_of(value), kind, named)}
        if isinstance(value, BroadcastEndpoint) and kind in ENDPOINTS.values():
            name = next(name for name, one in ENDPOINTS.items() if one is kind)
            return {name: self._fields(value, kind, (*path, name))}
        if isinstance(value, HAPolicy) and kind in POLICIES.values():
            return {"policy": value.kind, **self._fields(value, kind, path)}
        if kind in QUORUMS.values():
            name = next(name for name, one in QUORUMS.items() if one is kind)
            return {"kind": name, **self._fields(value, kind, path)}
        if isinstance(value, QuorumProvider):
            return _own_provider(value, path)
        if isinstance(value, Pool):
            return self._fields(value, PoolTable, path)
        if isinstance(value, Destinations):
            return {"queues" if value.routing == "anycast" else "topics": value.pattern}
        if isinstance(value, KeyFilter):
            return value.text
        if isinstance(value, BalancerPolicy):
            return _policy_name(value, path)
        if kind in TABLES:
            return self._fields(value, kind, path)
        raise _not_in_a_file(path, value)

    def _fields(self, value: Any, kind: type[Any], path: Where) -> dict[str, Any]:
        # A parameter may have another name than the field that keeps it.
        found = {one.alias or one.name: getattr(value, one.name) for one in attrs.fields(type(value)) if one.init}
        return self.table(found, kind, path)

    def _secret(self, value: Secret | EncryptionKey, path: Where) -> Any:
        if self._secrets == "env":
            parts = [str(part) for part in path]
            name = re.sub(r"[^A-Z0-9]+", "_", "_".join(("meshq", *parts)).upper())
            if name in self.variables or not all(PLAIN.fullmatch(part) for part in parts):
                # Else the variable of one key could become that of another one when keys come and go.
                name += "_" + hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:8].upper()
            key = shown(path)
            # A line of a comment has to stay one.
            self.variables[name] = "".join(
                one if one.isprintable() else one.encode("unicode_escape").decode() for one in key
            )
            return InLine(env=name)
        text = value.reveal()
        return text.hex() if isinstance(text, bytes) else text


def _settings_of(service: Service) -> dict[str, Any]:
    """Return the settings of a service by the names of its parameters."""
    settings: Any = getattr(service, "settings", None)
    found = {one.name: getattr(settings, one.name) for one in attrs.fields(type(settings))}
    if isinstance(service, ClusterConnection):
        return {**found, **service.login.keywords()}
    if isinstance(service, Bridge | NetworkConnector):
        return {**found, **service.login}
    return found


def _groups_of(policy: HAPolicy | None) -> list[DiscoveryGroup]:
    """Return the discovery groups that a policy names, also one of backups that a node runs for others."""
    orders = [getattr(one, "scale_down", None) for one in (policy, getattr(policy, "backup", None))]
    return [one.discovery for one in orders if one is not None and one.discovery is not None]


def _is_same(value: object, default: object) -> bool:
    """Whether a value is the default. The default of a secret is a text."""
    if isinstance(value, Secret):
        return value.reveal() == default
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return dict(value) == dict(default)
    both = {type(value), type(default)}
    return value == default and (len(both) == 1 or both == {int, float})


def _policy_name(policy: BalancerPolicy, path: Where) -> str:
    """Return the name of a policy of balancing that is as it is made without arguments."""
    kind = type(policy)
    try:
        plain = pickle.dumps(kind()) == pickle.dumps(policy)
    except (TypeError, AttributeError, pickle.PicklingError):
        plain = False
    if not plain or "<" in kind.__qualname__:
        raise _not_in_a_file(path, policy)
    return next((name for name, one in NAMES.items() if one is kind), f"{kind.__module__}:{kind.__qualname__}")


def _own_provider(provider: QuorumProvider, path: Where) -> dict[str, Any]:
    """Return a quorum of a program's own by its class and the fields from which it is made."""
    kind = type(provider)
    if not attrs.has(kind) or "<" in kind.__qualname__:
        raise _not_in_a_file(path, provider)
    found: dict[str, Any] = {
        one.alias or one.name: getattr(provider, one.name) for one in attrs.fields(kind) if one.init
    }
    for name, value in found.items():
        if not isinstance(value, str | bool | int | float):
            raise _not_in_a_file((*path, "properties", name), value)
    return {"class_name": f"{kind.__module__}:{kind.__qualname__}", "properties": found}


def _not_in_a_file(path: Where, value: object) -> SettingsError:
    return SettingsError(shown(path), value, _ALLOWED)
