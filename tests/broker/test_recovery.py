"""Random histories, cut by crashes: what comes back is what was promised."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from meshq import limits
from meshq.broker.log import _high_watermarks
from tests.broker.lives import Lives


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    """Marks that are passed all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_high_watermarks, "WATERMARK_BLOCK", 4)
        patch.setattr(limits, "SEQUENCE_RESERVE", 5)
        yield


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_broker_gives_back_what_its_journal_kept_at_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    lives = Lives(rng)
    for _ in range(3):
        for _ in range(rng.randint(1, 40)):
            lives.step()
        lives.crash()
