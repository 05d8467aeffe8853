"""The key of a connection, by which a balancer chooses its target."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from meshq.abc import HandshakeFacts
from meshq.lb._key_filter import KEY_CHARACTERS_MAX, KeyFilter

#: The key of a connection that lacks what the key is made of.
NO_KEY: Final = "DEFAULT"


def source_ip(peer: str) -> str:
    """Return the address of a peer without its port, zone and brackets.

    An IPv4 address in the form of IPv6 is the IPv4 address.
    """
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped if mapped is not None else address)


#: What a key is made of, by the name that a balancer's ``target_key`` has; of several texts the first that the filter
#: finds something in.
TARGET_KEYS: Final[Mapping[str, Callable[[HandshakeFacts], tuple[str, ...]]]] = {
    "client_id": lambda facts: (facts.label,),
    "sni_host": lambda facts: (facts.server_name.lower(),),
    "source_ip": lambda facts: (source_ip(facts.address),),
    "user_name": lambda facts: (facts.user,),
    "role_name": lambda facts: facts.roles,
}


def key_of(facts: HandshakeFacts, kind: str, wanted: KeyFilter | None) -> str:
    """Return the key of a connection; ``wanted``: the part of it that counts."""
    texts = [text for text in TARGET_KEYS[kind](facts) if text]
    if wanted is not None:
        text = next((one for one in texts if wanted.finds(one)), texts[0] if texts else "")
    else:
        text = texts[0] if texts else ""
    return filtered(text or NO_KEY, wanted)


def filtered(key: str, wanted: KeyFilter | None) -> str:
    """Return the part of a key that counts."""
    return (wanted.found(key) if wanted is not None else key)[:KEY_CHARACTERS_MAX]
