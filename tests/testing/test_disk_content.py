"""The bytes of a simulated file are those that were written, and zeros at its end take no memory."""

from __future__ import annotations

import random

import pytest

from meshq.testing.disk._content import Content

MIB = 1024 * 1024


@pytest.mark.parametrize("seed", range(50))
def test_a_file_has_what_was_written_whatever_is_written_cut_and_copied(seed: int) -> None:
    rng, content, model = random.Random(seed), Content(), bytearray()
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.7:
            offset, size = rng.randrange(40), rng.randrange(20)
            data = bytes(rng.choice((0, 0, 0, 1)) for _ in range(size))
            content.write(offset, data)
            model.extend(bytes(max(offset - len(model), 0)))
            model[offset : offset + size] = data
        else:
            size = rng.randrange(50)
            content.resize(size)
            model[size:] = bytes(max(size - len(model), 0))
        before, content = content, content.copy()
        before.write(0, b"another")
        assert content.read() == model and len(content) == len(model)
        assert [content[at] for at in range(len(model))] == list(model)
        start, stop = rng.randrange(60), rng.randrange(60)
        assert content.read(start, stop) == model[start:stop]


def test_zeros_at_the_end_take_no_memory_and_a_byte_behind_many_zeros_is_kept() -> None:
    content = Content()
    for at in range(8):
        content.write(at * MIB, bytes(MIB))
    content.resize(64 * MIB)
    assert len(content) == 64 * MIB and not content._bytes
    content.write(3 * MIB, bytes(2 * MIB) + b"x")
    assert content[5 * MIB] == ord("x") and len(content._bytes) == 5 * MIB + 1
