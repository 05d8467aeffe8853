"""Settings: frozen, by keyword only, validated when built.  Building one touches nothing."""

from meshq.settings._acceptor import Acceptor
from meshq.settings._address_settings import (
    DEFAULT_ADDRESS_SETTINGS,
    AddressSettings,
    DuplicateInTransaction,
    FullPolicy,
    address_settings_of,
    check_address_settings,
    check_pattern,
    kept_address_settings_of,
    settings_for,
)
from meshq.settings._journal_settings import JournalSettings
from meshq.settings._secrets import EncryptionKey, Secret, encryption_keys
from meshq.settings._security import IDENTITIES, Security, check_user, check_users
from meshq.settings._tls import TLS, ClientCertificates, SSLContext, check_tls
from meshq.settings._validators import (
    Validator,
    check_bool,
    check_seconds,
    in_range,
    is_bool,
    one_of,
    only,
    takes_settings,
)

__all__ = [
    "DEFAULT_ADDRESS_SETTINGS",
    "IDENTITIES",
    "TLS",
    "Acceptor",
    "AddressSettings",
    "ClientCertificates",
    "DuplicateInTransaction",
    "EncryptionKey",
    "FullPolicy",
    "JournalSettings",
    "SSLContext",
    "Secret",
    "Security",
    "Validator",
    "address_settings_of",
    "check_address_settings",
    "check_bool",
    "check_pattern",
    "check_seconds",
    "check_tls",
    "check_user",
    "check_users",
    "encryption_keys",
    "in_range",
    "is_bool",
    "kept_address_settings_of",
    "one_of",
    "only",
    "settings_for",
    "takes_settings",
]
