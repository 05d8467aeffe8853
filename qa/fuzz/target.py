"""A target of fuzzing: a function that takes any bytes, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs


class RefusedInputError(Exception):
    """A target has refused an input; for readers that return None instead of raising an error."""


@attrs.frozen
class Target:
    """A format that comes from outside, as a function of bytes.

    ``play`` returns, or raises one of ``errors``: any other error is a defect.  An ``AssertionError`` says what has to
    hold of whatever was decoded.
    """

    name: str
    play: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    #: Inputs that are right, or nearly so: the first ones of a corpus.
    seeds: Callable[[], Sequence[bytes]]
    #: Longer inputs are not tried.
    bytes_max: int
    #: Inputs of its corpus, beside those that once broke something: all of them are replayed in half a second.
    inputs_max: int = 60

    def accepts(self, data: bytes) -> bool:
        """Play an input; returns whether no typed error came out."""
        try:
            self.play(data)
        except self.errors:
            return False
        return True


def split(data: bytes, kinds: int) -> tuple[int, bytes]:
    """Return the kind of an input, which its first byte names, and the rest."""
    return (data[0] if data else 0) % kinds, data[1:]


def text_of(data: bytes) -> str:
    """Return bytes as a text.  Bytes that are no UTF-8 become halves of characters."""
    return data.decode("utf-8", "surrogatepass" if _is_surrogates(data) else "surrogateescape")


def _is_surrogates(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True
