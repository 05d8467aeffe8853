"""Settings: frozen, by keyword only, validated when built.  Building one touches nothing."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import attrs

from meshq import limits
from meshq.address import INTERNAL, TEMPORARY, check_name, check_routing, is_pattern, matches, specificity
from meshq.endpoint import Endpoint, shown_options
from meshq.errors import SettingsError
from meshq.permissions import Permissions, Roles, check_permissions, check_roles, check_together

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
F = TypeVar("F", bound=Callable[..., Any])


def takes_settings(settings: type[Any]) -> Callable[[F], F]:
    """A decorator for a function that hands its ``**settings`` on to this class: its signature shows all of them.

    What the function names itself, it shows as it does.  ``settings_class`` of it is the class, with the types.
    """

    def decorate(function: F) -> F:
        function.settings_class = settings  # type: ignore[attr-defined]
        written = inspect.signature(function)
        named = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {one.name for one in named}
        more = [one for one in inspect.signature(settings).parameters.values() if one.name not in names]
        function.__signature__ = written.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def in_range(low: float, high: float, *, whole: bool = False) -> Validator:
    """A validator for numbers from ``low`` to ``high``, both included."""
    kind = "a whole number" if whole else "a number"
    allowed = f"{kind} from {low} to {high}"

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        good = type(value) is int or (type(value) is float and (not whole or value == math.inf))
        if not good or not low <= value <= high:
            raise SettingsError(attribute.name, value, allowed)

    return check


def is_bool(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A validator for True and False."""
    if type(value) is not bool:
        raise SettingsError(attribute.name, value, "True or False")


def only(served: object, later: str) -> Validator:
    """A validator for a setting of which this version serves one value; ``later`` says what is to come."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        # A whole number may stand for the same one with a point.
        kinds = (int, float) if type(served) is float else (type(served),)
        if value != served or type(value) not in kinds:
            raise SettingsError(attribute.name, value, f"{served!r} in this version ({later} to come)")

    return check


class Secret:
    """A password: whoever prints, formats or logs it sees ``***``; only ``reveal()`` gives the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str | Secret) -> None:
        if isinstance(text, Secret):
            text = text.reveal()
        if type(text) is not str or not text or not _fits(text, limits.PASSWORD_BYTES_MAX):
            allowed = f"a text of 1 to {limits.PASSWORD_BYTES_MAX} bytes in UTF-8"
            raise SettingsError("password", "***", allowed)
        self._text: str = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: it would be written somewhere as it is")


class EncryptionKey:
    """A key of 32 random bytes, given as they are or as 64 hexadecimal digits; whoever prints it sees ``***``."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes | str | Secret | EncryptionKey) -> None:
        if isinstance(key, (EncryptionKey, Secret)):
            key = key.reveal()
        if isinstance(key, str):
            try:
                key = bytes.fromhex(key)
            except ValueError:
                key = b""
        if type(key) is not bytes or len(key) != limits.ENCRYPTION_KEY_BYTES:
            allowed = f"{limits.ENCRYPTION_KEY_BYTES} bytes, or twice as many hexadecimal digits"
            raise SettingsError("encryption_keys", "***", allowed)
        self._key: bytes = key

    def reveal(self) -> bytes:
        """The key itself."""
        return self._key

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncryptionKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash((EncryptionKey, self._key))

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EncryptionKey is not pickled: it would be written somewhere as it is")


def encryption_keys(keys: object) -> tuple[EncryptionKey, ...]:
    """Keys as they are kept, from what a user gave.

    Raises:
        SettingsError: one of them is none, or they are too many or the same.
    """
    if isinstance(keys, (str, bytes, EncryptionKey)) or not isinstance(keys, Sequence):
        raise SettingsError("encryption_keys", "***", "a list of keys")
    found = tuple(EncryptionKey(key) for key in keys)
    if len(found) > limits.ENCRYPTION_KEYS_MAX or len(set(found)) < len(found):
        allowed = f"at most {limits.ENCRYPTION_KEYS_MAX} different keys"
        raise SettingsError("encryption_keys", f"{len(found)} keys", allowed)
    return found


def _fits(text: str, most: int) -> bool:
    try:
        return len(text.encode()) <= most
    except UnicodeEncodeError:
        return False


def check_user(setting: str, value: object) -> str:
    """The name of a user, checked.

    Raises:
        SettingsError: it isn't one.
    """
    if type(value) is not str or not 1 <= len(value) <= limits.USER_CHARACTERS_MAX or not value.isprintable():
        raise SettingsError(setting, value, f"1 to {limits.USER_CHARACTERS_MAX} printable characters")
    return value


def check_users(setting: str, value: object) -> dict[str, Secret]:
    """Names with passwords, checked; the passwords are shown no more.

    Raises:
        SettingsError: it is not a mapping from names to passwords, or an empty one.
    """
    allowed = "a mapping from the names of users to their passwords, one at least"
    if not isinstance(value, Mapping) or not value:
        # Whatever it is, a password may be in it.
        raise SettingsError(setting, "***", allowed)
    return {check_user(setting, user): Secret(password) for user, password in value.items()}


def _users(value: object) -> dict[str, Secret]:
    return {} if value == {} else check_users("users", value)


#: What a certificate may say who somebody is.
IDENTITIES = ("CN", "DNS", "URI", "EMAIL", "SHA256")


def _identities(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise SettingsError("certificates", value, "a mapping from what certificates say to users")
    return {_identity(identity): check_user("certificates", user) for identity, user in value.items()}


def _identity(value: object) -> str:
    kind, _, text = value.partition("=") if type(value) is str else ("", "", "")
    if kind == "SHA256":
        text = text.replace(":", "").lower()
    if kind not in IDENTITIES or not text or (kind == "SHA256" and not re.fullmatch("[0-9a-f]{64}", text)):
        allowed = f"one of {', '.join(f'{name}=…' for name in IDENTITIES)}, the last one with 64 hexadecimal digits"
        raise SettingsError("certificates", value, allowed)
    return f"{kind}={text}"


@attrs.frozen(kw_only=True)
class Security:
    """Who may use a broker, and for what: ``Security(users={"app": "secret"})``.

    Every acceptor then asks for a user and the password; only clients in the broker's own process are not asked.

    ``certificates``: users who need no password, by what the certificate says that they show at an acceptor with
    ``client_certificates``: ``{"CN=app": "app"}``, or ``DNS=``, ``URI=`` and ``EMAIL=`` of its alternative names, or
    ``SHA256=`` and its fingerprint.

    ``permissions``: what may be done at the addresses of a pattern, by role; of several patterns that fit an address
    the most specific one holds, whole, and where none fits nothing may be done.  ``roles``: the roles of each user.
    Without the two, whoever comes in may do everything; clients in the broker's own process may in any case.
    """

    users: Mapping[str, Secret] = attrs.field(factory=dict, converter=_users)
    certificates: Mapping[str, str] = attrs.field(factory=dict, converter=_identities)
    roles: Mapping[str, Roles] | None = attrs.field(default=None, converter=check_roles)
    permissions: Mapping[str, Permissions] | None = attrs.field(default=None, converter=check_permissions)

    def __attrs_post_init__(self) -> None:
        if not self.users and not self.certificates:
            raise SettingsError("users", {}, "one user at least, or certificates that stand for users")
        check_together([*self.users, *self.certificates.values()], self.roles, self.permissions)


def _path(value: Any) -> Any:
    return value.__fspath__() if hasattr(value, "__fspath__") else value


def _is_path(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or not value):
        raise SettingsError(attribute.name, value, "the path of a file in PEM format, or None")


def _certificates(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("none", "optional", "required"):
        raise SettingsError(attribute.name, value, "'none', 'optional' or 'required'")


@attrs.frozen(kw_only=True)
class TLS:
    """What one side of a TLS connection shows and whom it believes; always TLS 1.3.  Paths are of files in PEM format.

    ``certificate``: this side's certificate, with those between it and its authority; a broker needs one.  ``key``:
    its private key, not encrypted; None: it stands in the same file.  ``authorities``: who may vouch for the other
    side; None: whom the system believes.  ``client_certificates``: whether a broker asks its clients for theirs;
    they are believed only if one of ``authorities``, which must then be given, vouches for them.

    The files are read when the broker starts or the client connects.
    """

    certificate: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    key: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    authorities: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    client_certificates: str = attrs.field(default="none", validator=_certificates)

    def __attrs_post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise SettingsError("key", self.key, "a key with its certificate")
        if self.client_certificates != "none" and self.authorities is None:
            raise SettingsError("authorities", None, "the authorities of the client certificates that are asked for")


def check_tls(setting: str, value: object) -> None:
    """``tls`` of an acceptor or a client: ``TLS``, an ``ssl.SSLContext`` or None.

    Raises:
        SettingsError: it is something else.
    """
    # The type is asked by its name: settings don't load ssl.
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    if value is not None and type(value) is not TLS and "ssl.SSLContext" not in kinds:
        raise SettingsError(setting, value, "TLS(...), an ssl.SSLContext or None")


def _tls(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_tls(attribute.name, value)


def _in_transaction(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("reject", "skip"):
        raise SettingsError(attribute.name, value, "'reject' or 'skip'")


def _routing(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_routing(attribute.name, value)


def _address(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and check_name(attribute.name, value).startswith((INTERNAL, TEMPORARY)):
        own = f"{INTERNAL!r} and {TEMPORARY!r} begin those of the broker"
        raise SettingsError(attribute.name, value, f"an address of one's own: {own}")


def _full_policy(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("page", "block", "drop", "fail"):
        raise SettingsError(attribute.name, value, "'page', 'block', 'drop' or 'fail'")


def _property_name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    most = limits.PROPERTY_NAME_BYTES_MAX
    if value is not None and (type(value) is not str or not value or not _fits(value, most)):
        allowed = f"the name of a property, 1 to {most} bytes, or None"
        raise SettingsError(attribute.name, value, allowed)


@attrs.frozen(kw_only=True)
class AddressSettings:
    """How the addresses that fit a pattern behave.

    ``duplicate_id_cache_size``: duplicate ids remembered per address; a producer whose window has more messages is
    refused, because not all that it may have to repeat would be known.  0: none are, and a window may be of any size.
    ``duplicate_in_transaction``: whether a message with a known one is left out of its transaction (``skip``) or the
    whole of that is rolled back (``reject``).  ``auto_create_queues``: an address or queue comes into being on first
    use.  ``default_routing``: what such an address is.  ``auto_delete_queues``: such a queue goes when it is empty and
    its last consumer has left, and such an address with its last queue, unless it remembers duplicate ids or is of
    another routing than the default one.

    ``dead_letter_address``: where a message goes that is rejected, or was delivered ``max_delivery_attempts`` times in
    vain; None: what is rejected is gone, and nothing else is taken away however often it fails.  ``expiry_address``:
    where a message goes whose time to live is over; None: it is gone.  Both come into being on first use.
    ``redelivery_delay``: seconds after which a message comes again that was handed back, the first time; each time
    after that ``redelivery_delay_multiplier`` times as many, at most ``max_redelivery_delay``.

    ``default_exclusive``: every consumer of its queues is an exclusive one.  ``default_group_rebalance``: when a
    consumer joins, all groups of its queue are given anew.  ``default_last_value_key``: the name of a property; of the
    messages with one value of it a queue keeps only the newest, and those that a consumer holds; None: all.

    ``max_size_bytes`` and ``max_size_messages``: how much an address may hold, in memory or at all; one run, thus up to
    256 messages, may go in beyond that.  ``full_policy`` says what happens then, or when the node has no memory left:
    ``"page"``: what is not needed next goes to the disk and comes back when it is, ``page_size_bytes`` at a time;
    ``"block"``: producers wait; ``"drop"``: messages are confirmed and dropped; ``"fail"``: a send raises
    ``AddressFullError``.  A broker without a ``data_dir`` has nowhere to page to: there ``"page"`` waits as ``"block"``
    does.

    ``redistribution_delay`` and ``redistribute_unmatched``: only their defaults in this version; nothing is moved.

    All of them can be changed while the broker runs (``client.set_address_settings``).  ``auto_create_queues`` and
    ``default_routing`` hold from the next first use on; ``default_exclusive`` and ``default_group_rebalance`` for who
    joins from then on; ``dead_letter_address``, ``expiry_address``, ``max_delivery_attempts`` and what says how long a
    message waits for what is rejected, handed back or expires from then on; all others at once.
    """

    duplicate_id_cache_size: int = attrs.field(
        default=limits.DUPLICATE_IDS_DEFAULT, validator=in_range(0, 10_000_000, whole=True)
    )
    duplicate_in_transaction: str = attrs.field(default="reject", validator=_in_transaction)
    auto_create_queues: bool = attrs.field(default=True, validator=is_bool)
    auto_delete_queues: bool = attrs.field(default=False, validator=is_bool)
    default_routing: str = attrs.field(default="anycast", validator=_routing)
    dead_letter_address: str | None = attrs.field(default=None, validator=_address)
    expiry_address: str | None = attrs.field(default=None, validator=_address)
    max_delivery_attempts: float = attrs.field(default=10, validator=in_range(1, math.inf, whole=True))
    redelivery_delay: float = attrs.field(default=0.0, validator=in_range(0, limits.TIME_S_MAX))
    redelivery_delay_multiplier: float = attrs.field(default=1.0, validator=in_range(1, 1_000))
    max_redelivery_delay: float = attrs.field(default=math.inf, validator=in_range(0, math.inf))
    default_exclusive: bool = attrs.field(default=False, validator=is_bool)
    default_group_rebalance: bool = attrs.field(default=False, validator=is_bool)
    default_last_value_key: str | None = attrs.field(default=None, validator=_property_name)
    full_policy: str = attrs.field(default="page", validator=_full_policy)
    max_size_bytes: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    max_size_messages: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    page_size_bytes: int = attrs.field(
        default=limits.PAGE_BYTES_DEFAULT, validator=in_range(limits.PAGE_BYTES_MIN, limits.PAGE_BYTES_MAX, whole=True)
    )
    redistribution_delay: float | None = attrs.field(default=None, validator=only(None, "redistribution"))
    redistribute_unmatched: bool = attrs.field(default=False, validator=only(False, "redistribution"))
    # Names of the settings that were written out: a default that is written out wins over a wider pattern, too.
    given: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)

    def __new__(cls, **given: object) -> AddressSettings:
        self = super().__new__(cls)
        object.__setattr__(self, "given", tuple(given))
        return self


# What ``help`` shows: each setting with its default, not what ``__new__`` takes.
_BUILT = inspect.signature(AddressSettings.__init__).parameters.values()
AddressSettings.__signature__ = inspect.Signature(list(_BUILT)[1:])  # type: ignore[attr-defined]

DEFAULT_ADDRESS_SETTINGS = AddressSettings()


def check_pattern(value: object) -> str:
    """A pattern of addresses.

    Raises:
        SettingsError: it is none.
    """
    if not is_pattern(value):
        raise SettingsError("address_settings", value, "patterns of words, '*' and '#' between dots")
    return str(value)


def address_settings_of(fields: Mapping[str, Any]) -> AddressSettings:
    """Settings from their names and values.

    Raises:
        SettingsError: a name is not known, or a value not allowed.
    """
    known = [field.name for field in attrs.fields(AddressSettings) if field.init]
    for name in fields:
        if name not in known:
            raise SettingsError("address_settings", name, f"settings from {', '.join(known)}")
    return AddressSettings(**fields)


def check_address_settings(value: object) -> dict[str, AddressSettings]:
    """``address_settings`` of a broker, checked: patterns to settings.

    Raises:
        SettingsError: it is not a mapping from patterns to ``AddressSettings``.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError("address_settings", value, "a mapping from patterns to AddressSettings")
    for pattern, settings in value.items():
        check_pattern(pattern)
        if not isinstance(settings, AddressSettings):
            raise SettingsError(f"address_settings[{pattern!r}]", settings, "AddressSettings")
    return dict(value)


def settings_for(patterns: Mapping[str, AddressSettings], address: str) -> AddressSettings:
    """The settings of one address: field by field, the most specific pattern that sets it wins."""
    fitting = sorted((pattern for pattern in patterns if matches(pattern, address)), key=specificity)
    values: dict[str, Any] = {}
    for pattern in fitting:
        settings = patterns[pattern]
        values.update((name, getattr(settings, name)) for name in settings.given)
    return AddressSettings(**values) if values else DEFAULT_ADDRESS_SETTINGS


@attrs.frozen(kw_only=True)
class JournalSettings:
    """How a broker's journal is kept.

    ``segment_bytes``: the size of its files.
    ``encryption_keys``: with the first one everything that is written from now on is encrypted; all of them read.
    """

    segment_bytes: int = attrs.field(
        default=limits.SEGMENT_BYTES,
        validator=in_range(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX, whole=True),
    )
    encryption_keys: tuple[EncryptionKey, ...] = attrs.field(default=(), converter=encryption_keys)


def _protocols(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or tuple(value) != ("meshq",):
        raise SettingsError("protocols", value, "['meshq']: the one protocol that a broker speaks")
    return ("meshq",)


@attrs.frozen
class Acceptor:
    """Where a broker listens: ``tcp://HOST:PORT``, or ``tls://HOST:PORT`` with ``tls``; port 0 for any free one.

    ``tls``: ``TLS(certificate=...)``, or an ``ssl.SSLContext`` for a server.
    Plaintext beyond the loopback device needs ``insecure=True``, and so does TLS there without ``security``.
    ``protocols``: what is spoken there; ``meshq`` is the only one that there is.
    ``insecure`` and ``protocols`` may also be options of the URL: ``?insecure=true&protocols=meshq``.
    """

    url: str
    tls: object = attrs.field(default=None, kw_only=True, validator=_tls)
    insecure: bool = attrs.field(default=False, kw_only=True, validator=is_bool)
    protocols: tuple[str, ...] = attrs.field(default=("meshq",), kw_only=True, converter=_protocols)
    endpoint: Endpoint = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        endpoint = Endpoint.parse(self.url)
        insecure, protocols = self.insecure, self.protocols
        for key, value in endpoint.options:
            if key == "insecure" and value in ("true", "false"):
                insecure = value == "true"
            elif key == "protocols":
                protocols = _protocols(value.split(","))
            else:
                allowed = "the options insecure=true|false and protocols=meshq"
                raise SettingsError("acceptor", shown_options(self.url), allowed)
        if endpoint.scheme not in ("tcp", "tls"):
            raise SettingsError("acceptor", self.url, "tcp://HOST:PORT or tls://HOST:PORT")
        if (endpoint.scheme == "tls") is not (self.tls is not None):
            raise SettingsError("acceptor", self.url, "tls://HOST:PORT with tls=, or tcp://HOST:PORT without")
        if type(self.tls) is TLS and self.tls.certificate is None:
            raise SettingsError("tls", self.tls, "TLS with a certificate: a broker shows one")
        if endpoint.scheme == "tcp" and not endpoint.loopback and not insecure:
            raise SettingsError("acceptor", self.url, "a loopback host, or insecure=True, or tls://")
        object.__setattr__(self, "endpoint", endpoint)
        object.__setattr__(self, "insecure", insecure)
        object.__setattr__(self, "protocols", protocols)
