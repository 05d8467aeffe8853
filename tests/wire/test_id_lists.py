"""Lists of duplicate ids that one node tells another."""

from __future__ import annotations

import pytest

from meshq.errors import RemoteProtocolError
from meshq.wire import IDS_MAX, IdList, decode_id_list, encode_id_list


@pytest.mark.parametrize("ids", [(b"a",), (b"a", b"bcd", b"ef"), tuple(b"%d" % number for number in range(IDS_MAX))])
def test_ids_come_back_in_their_order(ids: tuple[bytes, ...]) -> None:
    assert decode_id_list(encode_id_list(ids, 7)) == IdList(ids, 7)


@pytest.mark.parametrize("ids", [(), (b"a", b"a"), (b"a", b"b", b"a"), (b"a", b""), (b"x",) * (IDS_MAX + 1)])
def test_no_ids_equal_ones_empty_ones_and_too_many_are_refused(ids: tuple[bytes, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="duplicate id"):
        decode_id_list(encode_id_list(ids, 0))


def test_a_list_that_is_cut_short_or_goes_on_is_refused() -> None:
    whole = encode_id_list((b"ab", b"c"), 1)
    for data in (*[whole[:size] for size in range(len(whole))], whole + b"x"):
        with pytest.raises(RemoteProtocolError, match="duplicate ids"):
            decode_id_list(data)
