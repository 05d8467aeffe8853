"""The two exhaustive proofs of the journal; what each tried is printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qa.journal.bit_flips import BitFlips
from qa.journal.crash_images import CrashImages

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("encrypted", [False, True])
def test_no_crash_image_loses_invents_or_raises_a_false_alarm(
    encrypted: bool, record_property: Callable[[str, object], None]
) -> None:
    keys = (bytes(32),) if encrypted else ()
    tried = CrashImages(seed=int(encrypted), steps=20, checkpoints=not encrypted, keys=keys).run()
    record_property("proof", f"crash images: {tried.images}, inside recovery: {tried.nested}")
    assert tried.segments >= 3
    assert tried.compactions >= 1
    assert tried.indexing >= 8
    assert tried.images >= 2_000
    assert tried.nested >= 1_000


@pytest.mark.parametrize("encrypted", [False, True])
def test_no_flipped_bit_loses_invents_or_raises_a_false_alarm(
    encrypted: bool, record_property: Callable[[str, object], None]
) -> None:
    tried = BitFlips(seed=int(encrypted), keys=(bytes(32),) if encrypted else (), segments=2 - encrypted).run()
    record_property("proof", f"bit flips: {tried.flips}, detected: {tried.detected}, harmless: {tried.harmless}")
    assert tried.flips >= 30_000
    assert tried.detected and tried.harmless and tried.whole >= 100
