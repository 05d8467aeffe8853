"""The frames of a run with large messages, and the blocks of one of them."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.client.session._link_upload_machine import LinkUploadMachine
from meshq.cluster._frames_plan import frames_of, rows_with_counts
from meshq.wire import COUNTER_MAX, Forward, encode_former, encode_waits

BLOCK = limits.LARGE_BLOCK_BYTES


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([1, 10, 0], [(0, 3, False)]),
        ([11], [(0, 1, True)]),
        ([11, 12], [(0, 1, True), (1, 2, True)]),
        ([1, 11, 1, 10, 11], [(0, 1, False), (1, 2, True), (2, 4, False), (4, 5, True)]),
        ([11, 1], [(0, 1, True), (1, 2, False)]),
    ],
)
def test_what_is_large_goes_alone_and_all_rows_go_once_in_their_order(
    sizes: list[int], parts: list[tuple[int, int, bool]]
) -> None:
    assert [(rows.start, rows.stop, large) for rows, large in frames_of(sizes, 10)] == parts


def test_no_more_rows_than_allowed_go_together() -> None:
    parts = frames_of([1, 1, 1, 1, 11, 1, 1, 1], 10, 3)
    assert [(rows.start, rows.stop, large) for rows, large in parts] == [
        (0, 3, False),
        (3, 4, False),
        (4, 5, True),
        (5, 8, False),
    ]


@pytest.mark.parametrize(("texts", "queues"), [(["q"], 1), (["a" * 512, "é" * 400], 0), (["q"], 512)])
def test_a_header_has_room_for_the_counts_of_the_rows_that_go_together(texts: list[str], queues: int) -> None:
    rows = rows_with_counts(texts, queues)
    header = Forward(
        address=texts[0],
        producer=bytes(16),
        number=COUNTER_MAX,
        step=1,
        stride=1,
        queues=tuple([2**32 - 1] * queues),
        more=True,
        topic=True,
        arrival=COUNTER_MAX,
        waited=COUNTER_MAX,
        origin=tuple(texts[1:]),
        counts=encode_former(dict.fromkeys(range(rows), (2**16 - 1, 2**16 - 1))),
        due=encode_waits(dict.fromkeys(range(rows), 1)),
        held=bytes(limits.XID_BYTES_MAX),
        upload=2**32 - 1,
    )
    assert limits.HEADER_BYTES_MAX - 400 <= len(header.encode()) <= limits.HEADER_BYTES_MAX


def test_of_a_run_with_more_queues_than_a_header_names_each_message_goes_alone() -> None:
    assert rows_with_counts(["q"], 2_000) == 1


@pytest.mark.parametrize(("size", "count"), [(1, 1), (BLOCK, 1), (BLOCK + 1, 2), (10 * BLOCK, 10)])
def test_a_body_is_whole_when_each_of_its_blocks_is_written(size: int, count: int) -> None:
    upload = LinkUploadMachine(size)
    for number in range(count):
        assert (upload.whole, upload.next()) == (False, number)
        assert upload.read() is (number == count - 1)
        assert not upload.whole
        upload.written()
    assert (upload.whole, upload.next()) == (True, None)


def test_only_a_window_of_blocks_is_read_and_not_written() -> None:
    upload = LinkUploadMachine(100 * BLOCK, window=3)
    assert [upload.next() for _ in range(5)] == [0, 1, 2, None, None]
    upload.read()
    assert upload.next() is None
    upload.written()
    assert [upload.next(), upload.next()] == [3, None]
