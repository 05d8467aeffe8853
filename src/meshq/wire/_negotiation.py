"""Agreeing on a protocol version and on features: both sides get the newest that both know."""

from __future__ import annotations

from typing import Final

from meshq.wire._frames import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from meshq.wire._headers import Hello
from meshq.wire._refusals import violation

#: NODE frames: the server tells who is in its cluster.
TOPOLOGY: Final = "topology"
#: From a client: a CLOSE that names another node is followed there.  From a server: PROBE is answered.
REDIRECT: Final = "redirect"
#: Features that this version can agree to; none of them is needed.
FEATURES: Final[tuple[str, ...]] = (TOPOLOGY, REDIRECT)
#: The authentication that asks for nothing: in process and on the loopback device only.
MECHANISM_NONE: Final = "none"
#: The certificate that the client has shown under TLS says who it is.
MECHANISM_CERTIFICATE: Final = "certificate"
#: Both sides prove that they know a password, which neither of them says.
MECHANISM_SCRAM: Final = "scram-sha-256"


def agree(hello: Hello) -> tuple[int, tuple[str, ...]]:
    """Return the protocol version and the features that both sides know.

    Raises:
        RemoteProtocolError: there is no common version; both ranges are named.
    """
    version = min(hello.newest, PROTOCOL_VERSION)
    if hello.oldest > hello.newest:
        raise violation("bad_header", f"versions {hello.oldest}-{hello.newest} are not a range")
    if version < max(hello.oldest, PROTOCOL_VERSION_MIN):
        raise violation(
            "no_common_version",
            f"the client speaks {hello.oldest}-{hello.newest}, the node {PROTOCOL_VERSION_MIN}-{PROTOCOL_VERSION}",
        )
    return version, tuple(feature for feature in hello.features if feature in FEATURES)
