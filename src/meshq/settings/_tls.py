"""TLS settings: certificate, key and authorities of one side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from meshq.errors import SettingsError
from meshq.settings._validators import one_of


def _path(value: Any) -> Any:
    return value.__fspath__() if hasattr(value, "__fspath__") else value


def _is_path(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or not value):
        raise SettingsError(attribute.name, value, "the path of a file in PEM format, or None")


if TYPE_CHECKING:
    from ssl import SSLContext as SSLContext
else:
    # The library's module is loaded by the part that opens connections, and by no part that only checks settings.
    SSLContext = object

#: Whether a broker asks its clients for their certificates.
ClientCertificates = Literal["none", "optional", "required"]


@attrs.frozen(kw_only=True)
class TLS:
    """The certificates, key and authorities of one side of a TLS connection; always TLS 1.3.  Paths are of files in PEM
    format.

    ``certificate``: this side's certificate, with those between it and its authority; a broker needs one.  ``key``:
    its private key, not encrypted; None: it stands in the same file.  ``authorities``: who may vouch for the other
    side; None: whom the system believes.  ``client_certificates``: whether a broker asks its clients for theirs;
    they are believed only if one of ``authorities``, which must then be given, vouches for them.

    The files are read when the broker starts or the client connects; a client that connects again reads those that have
    changed since.
    """

    certificate: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    key: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    authorities: str | None = attrs.field(default=None, converter=_path, validator=_is_path)
    client_certificates: ClientCertificates = attrs.field(
        default="none", validator=one_of(get_args(ClientCertificates))
    )

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
