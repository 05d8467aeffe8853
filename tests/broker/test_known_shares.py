"""What is looked up of filters is what they say: dealing by what is known, beside dealing that asks."""

from __future__ import annotations

import random

import pytest

from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._filter_scan_plan import sift
from meshq.broker.ingress._known_shares import deal_known
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueSpec
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._verdicts import AskedFilters, judging, unasked
from meshq.selector import parse_filter
from meshq.wire import KIND_PROPERTIES, Envelope, encode_map, encode_run
from tests.broker.kit import PRODUCER


def run_of(rng: random.Random, rows: int) -> StoredRun:
    envelopes = [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": rng.randrange(4)})) for _ in range(rows)]
    content = encode_run([b""] * rows, envelopes)
    return StoredRun("a", content, durable=False, producer=PRODUCER, number=1, stamp=0)


@pytest.mark.parametrize("seed", range(60))
def test_dealing_by_what_is_known_is_dealing_by_asking(seed: int) -> None:
    rng = random.Random(seed)
    run = run_of(rng, rng.choice((1, 3, 8, 9, 40)))
    queues = []
    for number in range(1, rng.randrange(2, 12)):
        filter = parse_filter(f"k = {rng.randrange(5)} OR k > {rng.randrange(6)}") if rng.random() < 0.8 else None
        queues.append(Queue(number, f"q{number}", "a", durable=False, spec=QueueSpec(filter=filter)))
    filters = list(dict.fromkeys(queue.spec.filter for queue in queues if queue.spec.filter is not None))
    rows = range(run.content.rows) if rng.random() < 0.5 else sorted(rng.sample(range(run.content.rows), 1))
    anycast, turn = rng.random() < 0.5, rng.randrange(20)
    told = sift(queues, rows, anycast=anycast, next_index=turn, wants=wants_of(run))
    # They are asked in two parts, as if some had come later.
    middle = rng.randrange(len(filters) + 1)
    for part in (filters[:middle], filters[middle:]):
        assert deal_known(run, queues, rows, anycast=anycast, next_index=turn) is None or not part
        for _ in judging(run, part, AskedFilters(part)):
            pass
    assert not unasked(run, filters)
    assert deal_known(run, queues, rows, anycast=anycast, next_index=turn) == told
    assert sift(queues, rows, anycast=anycast, next_index=turn, wants=wants_of(run)) == told


def test_of_messages_that_were_not_asked_nothing_is_known() -> None:
    run = run_of(random.Random(1), 10)
    some = parse_filter("k >= 0")
    for _ in judging(run, [some], AskedFilters([some]), range(5)):
        pass
    queue = Queue(1, "q", "a", durable=False, spec=QueueSpec(filter=some))
    assert deal_known(run, [queue], range(10), anycast=False, next_index=0) is None
    assert unasked(run, [some], range(5)) == [] and unasked(run, [some]) == [some]
    (share,) = sift([queue], range(10), anycast=False, next_index=0, wants=wants_of(run))
    assert share.rows == range(10), "the others are asked"
    picked = run.verdicts[0].picked([4, 5, 6])
    assert picked.asked == 0b001 and picked.of(some) == 0b001
