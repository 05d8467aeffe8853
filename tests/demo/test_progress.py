"""What one sees: lines where nobody watches, bars where somebody does."""

from __future__ import annotations

import io
import sys

import pytest

from meshq.demo._progress import BarProgress, PlainProgress, progress_view
from meshq.errors import UsageError


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        return True


def said(text: str) -> list[str]:
    """The lines, without their times."""
    return [line.partition(" s  ")[2] for line in text.splitlines()]


def test_a_file_gets_a_line_for_every_tenth() -> None:
    out = io.StringIO()
    with progress_view(out) as view:
        assert isinstance(view, PlainProgress)
        view.total(1_000)
        view.say("at work")
        for delivered in range(0, 1_001, 10):
            view.show(min(1_000, 2 * delivered), delivered)
    assert said(out.getvalue())[0] == "at work"
    assert len(said(out.getvalue())) == 11
    assert said(out.getvalue())[1] == "200 of 1,000 flights confirmed, 100 delivered"
    assert said(out.getvalue())[-1] == "1,000 of 1,000 flights confirmed, 1,000 delivered"
    assert "\x1b" not in out.getvalue()


def test_the_last_line_says_that_all_is_delivered() -> None:
    out = io.StringIO()
    view = PlainProgress(out)
    view.total(1_001)
    for delivered in range(1_002):
        view.show(1_001, delivered)
    view.show(1_001, 1_001)
    assert len(said(out.getvalue())) == 10
    assert said(out.getvalue())[-1] == "1,001 of 1,001 flights confirmed, 1,001 delivered"


def test_a_jump_over_several_tenths_is_one_line() -> None:
    out = io.StringIO()
    view = PlainProgress(out)
    view.total(7)
    view.show(7, 6)
    view.show(7, 6)
    view.show(7, 7)
    assert said(out.getvalue()) == [f"7 of 7 flights confirmed, {count} delivered" for count in (6, 7)]


@pytest.mark.demo
def test_a_terminal_gets_bars_that_are_not_drawn_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with progress_view(out) as view:
        assert isinstance(view, BarProgress)
        view.total(10_000)
        view.say("at work")
        for delivered in range(10_001):
            view.show(10_000, delivered)
    text = out.getvalue()
    assert "at work" in text
    assert "10000/10000" in text
    assert text.count("delivered") < 600


def test_a_terminal_without_rich_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"] + ["rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"needs rich, .*pip install 'meshq\[demo\]'"):
        progress_view(Terminal())
    assert isinstance(progress_view(io.StringIO()), PlainProgress)
