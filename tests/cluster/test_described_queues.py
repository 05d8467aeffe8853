"""What is kept of the descriptions of one node's queues, and what is not."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.abc import RemoteQueue
from meshq.cluster import _described_queues
from meshq.cluster._described_queues import DescribedQueues


def described(number: int, address: str = "q", **changed: object) -> RemoteQueue:
    """A queue of another node."""
    values = {"name": f"q{number}", "routing": "multicast", "consumers": 1, **changed}
    return RemoteQueue(number=number, address=address, **values)  # type: ignore[arg-type]


def numbers(known: DescribedQueues) -> list[int]:
    """Which are known."""
    return sorted(one.number for one in known)


def test_of_one_address_as_many_queues_are_known_as_a_node_has() -> None:
    known, most = DescribedQueues(), limits.ALL_QUEUES_PER_ADDRESS_MAX
    refused = [known.put(described(number)) for number in range(1, most + 3)]
    assert refused == [""] * most + ["more than 2,448 queues of the address 'q'"] * 2
    assert known.put(described(most + 3, "other")) == ""
    # One that goes, and one that is of another address now, make room.
    known.drop(1)
    assert known.put(described(2, "other")) == ""
    assert [known.put(described(number)) for number in (most + 1, most + 2, 2)][:2] == ["", ""]
    assert len(numbers(known)) == most + 1


def test_a_queue_that_is_refused_is_not_known_as_it_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALL_QUEUES_PER_ADDRESS_MAX", 1)
    known = DescribedQueues()
    assert (known.put(described(1)), known.put(described(2, "other"))) == ("", "")
    assert known.put(described(2)) == "more than 1 queues of the address 'q'"
    assert numbers(known) == [1]


def test_names_and_filters_are_kept_up_to_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_described_queues, "DESCRIBED_BYTES_MAX", 10_000)
    known = DescribedQueues()
    told = [known.put(described(number, filters=("f" * 2_000,), filter="g" * 900)) for number in range(1, 5)]
    assert told == ["", "", "", "queues whose names and filters are more than 10,000 bytes"]
    known.drop(2)
    known.drop(99)
    assert known.put(described(4, filters=("f" * 2_000,), filter="g" * 900)) == ""
    known.clear()
    assert numbers(known) == []
    assert [known.put(described(number, filters=("f" * 2_900,))) for number in range(1, 4)] == [""] * 3
