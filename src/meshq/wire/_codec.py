"""Msgpack with strict limits, for headers and properties.

The C decoder alone is no boundary: it nests a thousand levels deep and lets the last of two equal keys win.  Here
a map is flat or holds flat lists, its keys are different strings, and nothing trails it.
"""

from __future__ import annotations

from typing import Any

import msgpack

from meshq.wire._refusals import violation


def encode_map(value: dict[str, Any]) -> bytes:
    """Encode a flat map."""
    return msgpack.packb(value, use_bin_type=True, strict_types=True)  # type: ignore[no-any-return]


def _checked(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError("extension types are not allowed")


def decode_map(data: bytes | memoryview, size_max: int, refusal: str = "bad_header") -> dict[str, Any]:
    """Decode a map of strings to scalars or flat lists of scalars.

    Raises:
        RemoteProtocolError: anything else was found; ``refusal`` is the registry's name for it.
    """
    if len(data) > size_max:
        raise violation("too_large", f"{len(data)} bytes of header; allowed: {size_max}")
    # Nesting is found after decoding: by then the size bounds it, and nothing here compares or prints a value.
    try:
        result = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_checked,
            ext_hook=_no_extension,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise violation(refusal, f"it cannot be decoded ({type(error).__name__})") from error
    if type(result) is not dict:
        raise violation(refusal, "it is not a map")
    for key, value in result.items():
        if type(key) is not str:
            raise violation(refusal, "a key is not a string")
        if type(value) is list:
            if not all(_scalar(item) for item in value):
                raise violation(refusal, f"{key!r} holds a value of a kind that is not allowed")
        elif not _scalar(value):
            raise violation(refusal, f"{key!r} has a value of a kind that is not allowed")
    return result


def _scalar(value: Any) -> bool:
    if type(value) is float:
        return value == value
    return value is None or type(value) in (str, bytes, bool, int)
