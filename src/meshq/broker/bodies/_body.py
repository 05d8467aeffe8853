"""A large body: bytes that lie elsewhere than the run that speaks of them."""

from __future__ import annotations

from meshq import limits


class Body:
    """A body.  However many queues, dead letters and diverts have its message, the body is kept once.

    ``size_bytes`` grows while it comes in.  ``refs``: runs that are in some queue and speak of it; with the last one
    it goes.
    """

    __slots__ = ("body_id", "refs", "size_bytes")

    def __init__(self, body_id: bytes, size_bytes: int = 0) -> None:
        self.body_id: bytes = body_id
        self.size_bytes: int = size_bytes
        self.refs: int = 0

    def __repr__(self) -> str:
        return f"<Body {self.body_id.hex()} of {self.size_bytes} bytes, {self.refs} refs>"

    @property
    def window_bytes(self) -> int:
        """Bytes that the body counts for in a consumer's window: 0 if the consumer reads it on demand."""
        return self.size_bytes if self.size_bytes <= limits.MESSAGE_BYTES_MAX else 0
