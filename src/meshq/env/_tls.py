"""TLS 1.3 by OpenSSL: contexts from settings, and the handshake.

No older version is spoken, the client trusts no server without a certificate for the host that it dialled, and both
sides must agree on this protocol (ALPN).  A context of the program is held to the same rules, and gets our protocol's
name; all other settings of it are the program's affair.

Session tickets are off: a server that sends them after the handshake to a client that only sends makes the system
answer the client's orderly end with a reset, and the client's last bytes are lost.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from meshq.abc import Stream, Tls, TlsSide
from meshq.env._disk import NO_DESCRIPTOR
from meshq.env._tls_stream import TlsStream, refused
from meshq.errors import ConnectionBrokenError, MeshqError, SecurityError, SettingsError, caused
from meshq.limits import FRAME_MAGIC, KIB, UNAUTHENTICATED_READ_BYTES_MAX
from meshq.settings import TLS

PROTOCOL: Final = "meshq/1"
_READ_BYTES: Final = 16 * KIB
#: Contexts of clients that are kept, for so many different settings.
_KEPT_MAX: Final = 32
#: Which files were read, and which contents these had: (time of the last change, size, number of the file), or None.
_Stamp = tuple[tuple[str, tuple[int, int, int] | None], ...]
_CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class OpenSslTls(Tls):
    """TLS by the ``ssl`` module.

    To read the authorities of a system takes tens of milliseconds, in which a broker does nothing else; so a client
    that dials again has the context that it had, unless one of its files has changed.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[TLS | None, tuple[_Stamp, TlsSide]] = {}

    def server(self, tls: object) -> TlsSide:
        if isinstance(tls, TLS):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            _load(context, tls)
            context.verify_mode = _CLIENT_CERTIFICATES[tls.client_certificates]
        else:
            context = _given(tls, server=True)
        _prepare(context)
        binding = hashlib.sha256(own_certificate(context)).digest()
        context.num_tickets = 0
        return _OpenSslSide(context, server=True, binding=binding)

    def client(self, tls: object) -> TlsSide:
        if tls is not None and not isinstance(tls, TLS):
            context = _given(tls, server=False)
            _prepare(context)
            return _OpenSslSide(context, server=False, binding=b"")
        # Before they are read: what changes meanwhile is read again the next time.
        stamp = _stamp_of(tls)
        kept = self._kept.pop(tls, None)
        side = kept[1] if kept is not None and kept[0] == stamp else _client(tls)
        self._kept[tls] = stamp, side
        # Loops of several threads may be here.
        for oldest in list(self._kept)[:-_KEPT_MAX]:
            self._kept.pop(oldest, None)
        return side


def client_context(tls: TLS | None) -> ssl.SSLContext:
    """Return a context for the client of any protocol.  Raises: SettingsError: a file can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if tls is None or tls.authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls is not None:
        _load(context, tls)
    return context


def _client(tls: TLS | None) -> TlsSide:
    context = client_context(tls)
    _prepare(context)
    return _OpenSslSide(context, server=False, binding=b"")


def _stamp_of(tls: TLS | None) -> _Stamp:
    """Return the files of a client with the times of their last changes."""
    paths: list[str | None] = [] if tls is None else [tls.certificate, tls.key, tls.authorities]
    if tls is None or tls.authorities is None:
        system = ssl.get_default_verify_paths()
        paths += [system.cafile, system.capath]
    return tuple((path, _changed(path)) for path in paths if path is not None)


def _changed(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _prepare(context: ssl.SSLContext) -> None:
    context.set_alpn_protocols([PROTOCOL])
    # The first releases of Python 3.11 take any end of the connection below for a good-bye unless they are told.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF


def _load(context: ssl.SSLContext, tls: TLS) -> None:
    if tls.certificate is not None:
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            _check_descriptors(error, tls.certificate)
            allowed = f"files in PEM format with a certificate and its unencrypted key ({error})"
            raise SettingsError("certificate", tls.certificate, allowed) from error
    if tls.authorities is not None:
        try:
            context.load_verify_locations(tls.authorities)
        except (OSError, ValueError) as error:
            _check_descriptors(error, tls.authorities)
            allowed = f"a file in PEM format with certificates ({error})"
            raise SettingsError("authorities", tls.authorities, allowed) from error


def _check_descriptors(error: OSError | ValueError, path: str) -> None:
    """Raise ``ConnectionBrokenError`` if a file could not be opened because no descriptor is free."""
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
        raise ConnectionBrokenError(f"{path} can't be opened now: {error.strerror}", outcome="not_done") from error


def _given(tls: object, *, server: bool) -> ssl.SSLContext:
    """Check a context of the program."""
    if not isinstance(tls, ssl.SSLContext):
        raise SettingsError("tls", tls, "TLS(...) or an ssl.SSLContext")
    if tls.minimum_version < ssl.TLSVersion.TLSv1_3:
        raise SettingsError("tls", tls, "an ssl.SSLContext whose minimum_version is TLSv1_3")
    if not server and (tls.verify_mode is not ssl.CERT_REQUIRED or not tls.check_hostname):
        raise SettingsError("tls", tls, "an ssl.SSLContext with CERT_REQUIRED and check_hostname")
    return tls


def own_certificate(context: ssl.SSLContext) -> bytes:
    """Return the certificate (DER) that a server with this context shows.

    A context does not tell, so it is asked as a client would: by a handshake, here in memory.

    Raises:
        SettingsError: it has none.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    asking.set_alpn_protocols([PROTOCOL])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    allowed = "an ssl.SSLContext for a server, with a certificate and its key"
    try:
        client, server = asking.wrap_bio(down, up), context.wrap_bio(up, down, server_side=True)
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        certificate = client.getpeercert(binary_form=True)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError("tls", context, allowed) from error
    if certificate is None:
        raise SettingsError("tls", context, allowed)
    return certificate


class _OpenSslSide(TlsSide):
    """A side of TLS connections, with its context."""

    def __init__(self, context: ssl.SSLContext, *, server: bool, binding: bytes) -> None:
        self._context = context
        self._server = server
        self._binding = binding
        # The host name that each client asks for, from its greeting to the end of its handshake.
        self._asked: weakref.WeakKeyDictionary[ssl.SSLObject, str] = weakref.WeakKeyDictionary()
        if server:
            # A context of the program's may have a callback of its own, which chooses a certificate.
            context.sni_callback = partial(_note_name, self._asked, context.sni_callback)

    async def wrap(self, stream: Stream, host: str | None = None) -> Stream:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            tls = self._context.wrap_bio(incoming, outgoing, server_side=self._server, server_hostname=host)
            await _shake(stream, tls, incoming, outgoing)
            self._check(stream, tls)
            binding = self._binding
            if not self._server:
                binding = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").digest()
            name = self._asked.pop(tls, "")
            return TlsStream(stream, tls, incoming, outgoing, binding, server_name=name)
        except BaseException:
            stream.close()
            raise

    def _check(self, stream: Stream, tls: ssl.SSLObject) -> None:
        version, protocol = tls.version(), tls.selected_alpn_protocol()
        if version != "TLSv1.3" or protocol != PROTOCOL:
            raise SecurityError(f"{stream.peer} speaks {version} for {protocol!r}, not TLSv1.3 for {PROTOCOL!r}")


def _note_name(
    asked: weakref.WeakKeyDictionary[ssl.SSLObject, str],
    inner: Callable[..., int | None] | None,
    tls: ssl.SSLObject,
    name: str | None,
    context: ssl.SSLContext,
) -> int | None:
    # Whoever greets may write anything there.
    if name is not None and name.isprintable():
        asked[tls] = name
    return inner(tls, name, context) if inner is not None else None


async def _shake(stream: Stream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    left = UNAUTHENTICATED_READ_BYTES_MAX
    heard = b""
    await trio.lowlevel.checkpoint()
    while True:
        problem: MeshqError | None = None
        done = False
        try:
            tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            problem = refused(error, stream.peer) if tls.server_side else _handshake_error(error, stream.peer, heard)
            problem.__cause__ = error
        said = outgoing.pending
        if said:
            stream.send_nowait(outgoing.read())
            await stream.flush()
        if problem is not None:
            if said and tls.server_side:
                await _wait_for_close(stream)
            raise problem
        if done:
            return
        data = await stream.receive(min(left, _READ_BYTES))
        if not data:
            text = f"{stream.peer} has ended the connection in the handshake of TLS"
            raise ConnectionBrokenError(text) from EOFError("the stream has ended")
        left -= len(data)
        if not left:
            raise SecurityError(
                f"{stream.peer} has sent {UNAUTHENTICATED_READ_BYTES_MAX} bytes and no handshake of TLS"
            )
        heard = (heard + data)[: len(FRAME_MAGIC)] if len(heard) < len(FRAME_MAGIC) else heard
        incoming.write(data)


def _handshake_error(error: ssl.SSLError, peer: str, heard: bytes) -> MeshqError:
    """Return the error for a failed handshake of a client, by the bytes that the other side has sent.

    A plaintext frame of our protocol comes from a node that is full and refuses before the handshake, or that has no
    TLS (yet): no identity was checked, so the client may try again.
    """
    if heard == FRAME_MAGIC:
        text = f"{peer} has answered in plaintext, where TLS was expected: it may have no room, or no TLS"
        return caused(ConnectionBrokenError(text, outcome="not_done"), error)
    return refused(error, peer)


async def _wait_for_close(stream: Stream) -> None:
    """Wait until the other side has read the alert, and ends the connection; the caller sets a time limit.

    Closing at once, with unread bytes received, would reset the connection, and the alert would be lost.
    """
    left = UNAUTHENTICATED_READ_BYTES_MAX
    while left > 0:
        try:
            data = await stream.receive(min(left, _READ_BYTES))
        except ConnectionBrokenError:
            return
        if not data:
            return
        left -= len(data)
