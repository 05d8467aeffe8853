"""Msgpack with strict limits, for headers and properties.

A map is flat, or holds a few flat lists; its keys are different strings, and nothing trails it.

The C decoder alone is no boundary.  It nests a thousand levels deep, lets the last of two equal keys win, and makes
room for as many items as an array says it has before it looks for them: a few KiB of nested array headers cost
hundreds of MiB.  So what it may see is settled before it starts.  Most maps hold no list and no byte that could begin
one, which one call tells; the others are walked token by token.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from meshq import limits
from meshq.errors import LocalProtocolError
from meshq.wire._refusals import violation

#: Lists of one map: no header has more than two.
LISTS_MAX: Final = 2
#: Items of one list: index and count for each message of a run, or names and values of a whole header.
ITEMS_MAX: Final = limits.HEADER_BYTES_MAX

#: Bytes that begin a map or a list, and may as well be part of a string or a number.
_CONTAINERS: Final = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_MAP16: Final = 0xDE
_LIST16: Final = 0xDC
#: Tokens whose length is in the bytes that follow: how many of these.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_NUMBERS: Final = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
#: Types that need no second look: a float may be no number.
_HARMLESS: Final = _SCALARS - {float}
_ONLY_STRINGS: Final = frozenset({str})


def _token_bytes(first: int) -> int:
    """Return the length of a token with this first byte; 0: not a scalar of a known length."""
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return 1
    if 0xA0 <= first < 0xC0:
        return 1 + (first & 31)
    return _NUMBERS.get(first, 0)


_TOKEN_BYTES: Final = bytes(map(_token_bytes, range(256)))


def encode_map(value: dict[str, Any]) -> bytes:
    """Encode a flat map.

    Raises:
        LocalProtocolError: a value can't be encoded: an integer beyond 64 bits, half a surrogate pair, another type.
    """
    try:
        return msgpack.packb(value, use_bin_type=True, strict_types=True)  # type: ignore[no-any-return]
    except (ValueError, TypeError, OverflowError) as error:
        # The values themselves are not repeated: they may be secrets.
        raise LocalProtocolError(f"a value can't be encoded ({type(error).__name__})") from None


def decode_map(
    data: bytes | memoryview, size_max: int, refusal: str = "bad_header", *, lists: bool = True
) -> dict[str, Any]:
    """Decode a map of strings to scalars or, unless ``lists`` is False, flat lists of scalars.

    Raises:
        RemoteProtocolError: anything else was found; ``refusal`` is the registry's name for it.
    """
    if len(data) > size_max:
        raise violation("too_large", f"{len(data)} bytes of header; allowed: {size_max}")
    if type(data) is not bytes:
        data = bytes(data)
    first = data[0] if data else 0
    if 0x80 <= first < 0x90:
        count, at = first & 15, 1
    elif first == _MAP16:
        count, at = int.from_bytes(data[1:3], "big"), 3
    else:
        raise violation(refusal, "it is not a map")
    if len(data) - len(data.translate(None, _CONTAINERS)) > 1:
        _check_tokens(data, at, refusal, LISTS_MAX if lists else 0)
    try:
        result: dict[Any, Any] = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_map_len=limits.PROPERTIES_MAX,
            max_array_len=ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise violation(refusal, f"it cannot be decoded ({type(error).__name__})") from None
    if len(result) != count:
        raise violation(refusal, "a key stands twice")
    if not _ONLY_STRINGS.issuperset(map(type, result)):
        raise violation(refusal, "a key is not a string")
    if not _HARMLESS.issuperset(map(type, result.values())):
        _check_values(result.values(), refusal, lists)
    return result


def _check_tokens(data: bytes, at: int, refusal: str, lists_max: int) -> None:
    """Find containers other than a few lists; truncated tokens are left to the decoder."""
    size = len(data)
    lists = 0
    while at < size:
        first = data[at]
        step = _TOKEN_BYTES[first]
        if not step:
            width = _SIZED.get(first)
            if width is not None:
                step = 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
            elif 0x90 <= first < 0xA0 or first == _LIST16:
                lists += 1
                if lists > lists_max:
                    raise violation(refusal, f"more than {lists_max} lists")
                step = 3 if first == _LIST16 else 1
            else:
                raise violation(refusal, f"a value of a kind that is not allowed ({first:#x})")
        at += step


def _check_values(values: Any, refusal: str, lists: bool) -> None:
    types = set(map(type, values))
    if not types <= _SCALARS:
        if not lists or types - _SCALARS != {list}:
            raise violation(refusal, "a value of a kind that is not allowed")
        for value in values:
            if type(value) is list:
                _check_values(value, refusal, False)
    if float in types and any(value != value for value in values if type(value) is float):
        raise violation(refusal, "a value that is not a number")


def by_name(flat: tuple[Any, ...], what: str) -> dict[str, Any]:
    """Return a flat list of names and values as a dictionary."""
    names, values = flat[0::2], flat[1::2]
    if len(names) != len(values) or not all(type(name) is str for name in names) or len(set(names)) != len(names):
        raise violation("bad_header", f"{what} are not different names, and values, in turn")
    return dict(zip(names, values, strict=True))
