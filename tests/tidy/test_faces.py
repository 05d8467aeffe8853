"""The calls that the faces for asyncio and for threads hand on are drawn from the trio classes."""

from __future__ import annotations

import ast

import attrs
import pytest
from tools import draw_faces, face_words

from meshq.client import Client
from tests.tidy.sources import python_files

pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]
PART = draw_faces.PARTS[0]


class WithOneMore(Client):
    """A client with one more call."""

    async def describe(self, name: str, *, limit: int | None = None) -> str:
        """Describe a queue to every task.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: there is no such queue.
        """
        return f"{name} {limit}"

    async def rename(self, *names: str) -> None:
        """Rename something, as ``async with`` does.

        Checkpoint: when it has to wait.
        Cancellation: it goes on.
        """


def test_every_file_is_as_it_is_drawn() -> None:
    drawn = {str(path.relative_to(draw_faces.SOURCE.parents[1])): text for path, text in draw_faces.files().items()}
    there = {source.path: source.text for source in python_files("src")}
    assert {path for path in there if "/_generated_" in path} <= set(drawn)
    stale = [path for path, text in drawn.items() if there.get(path) != text]
    assert not stale, "draw them anew: python -m tools.draw_faces"


@pytest.mark.parametrize("face", face_words.FACES)
def test_a_new_call_is_drawn_without_any_other_change(face: face_words.Face) -> None:
    text = draw_faces.drawn(attrs.evolve(PART, owner=WithOneMore), face)
    made = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    if face == "aio":
        lines = [ast.unparse(node) for node in made.body]
        assert "describe: Final = forwarded(trio_client.WithOneMore.describe)" in lines
        assert "rename: Final = forwarded(trio_client.WithOneMore.rename)" in lines
        return
    assert (
        """
    def describe(self, name: str, *, limit: int | None = None) -> str:
        \"""Describe a queue to every thread.

        Interrupted: nothing has changed.
        Raises:
            NotFoundError: there is no such queue.
        \"""
        return self._call(self._inner.describe, name, limit=limit)
"""
        in text
    )
    assert (
        """
    def rename(self, *names: str) -> None:
        \"""Rename something, as ``with`` does.

        Interrupted: it goes on.
        \"""
        self._call(self._inner.rename, *names)
"""
        in text
    )


BY_HAND = '''
class Consumer:
    def reject(self):
        """Say something else."""
        return 1

    def _look(self):
        """Look."""

    def __enter__(self):
        """Enter."""


class Another:
    def reject(self):
        """Say something else."""
'''


def test_a_method_written_by_hand_has_the_documentation_of_the_trio_class() -> None:
    told, kept = draw_faces.said_anew(BY_HAND, "blocking").split("class Another")
    assert (
        """
        \"""Reject messages for good: the broker moves them to the dead-letter address, or drops them if none is set.

        Interrupted: it is in line or not touched.
        Raises:
            UsageError, StaleDeliveryError: as ``ack``.
        \"""
        return 1
"""
        in told
    )
    assert '"""Look."""' in told and '"""Open it at the broker.' in told and "Enter." not in told
    assert "Say something else." in kept


def test_what_a_face_says_otherwise_has_to_be_said_by_the_trio_class(monkeypatch: pytest.MonkeyPatch) -> None:
    method = face_words.method_of(Client, "flush")
    assert method is not None
    monkeypatch.setitem(face_words.OTHERWISE, "aio", {"Client.flush": (("it goes on its way", "it is gone"),)})  # type: ignore[arg-type]
    assert "Cancellation: it is gone." in face_words.said(method, "aio")
    monkeypatch.setitem(face_words.OTHERWISE, "aio", {"Client.flush": (("no such words", "others"),)})  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"Client\.flush does not say: no such words"):
        face_words.said(method, "aio")


def test_a_long_list_is_laid_out_in_lines() -> None:
    items = ["x" * 30, "y" * 30, "z" * 30]
    assert draw_faces.laid_out("f(", items[:1], ")", 4) == f"    f({items[0]})"
    assert draw_faces.laid_out("call(", [*items, "w" * 12], ")", 8) == (
        f"        call(\n            {', '.join([*items, 'w' * 12])}\n        )"
    )
    assert draw_faces.laid_out("f(", [*items, *items], ")", 0).splitlines()[1:3] == [
        f"    {items[0]},",
        f"    {items[1]},",
    ]


def test_a_paragraph_that_became_too_long_is_filled_anew() -> None:
    long = "word " * 30 + "end.\nNext sentence."
    lines = list(face_words._filled(f"First.\n\n{long}\n\nRaises:\n    ClosedError: why."))
    assert lines[:2] == ["First.", ""] and lines[-3:] == ["", "Raises:", "    ClosedError: why."]
    assert max(map(len, lines)) <= face_words.WIDTH - 8
    assert "end.  Next sentence." in " ".join(lines)
