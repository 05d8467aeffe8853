"""The drawing of the states is the table's."""

from __future__ import annotations

import pytest
from tools import draw_connection_states

from meshq.wire import TRANSITIONS, ConnectionState, FrameType, Sender


def test_the_drawing_in_the_documentation_is_not_stale() -> None:
    assert draw_connection_states.PAGE.read_text(encoding="utf-8") == draw_connection_states.page()


def test_the_page_names_every_state_and_every_frame() -> None:
    page = draw_connection_states.page()
    for state in ConnectionState:
        assert f"| {state.value} " in page
        assert f"- `{state.name}`: " in page
    assert all(frame_type.name in page for frame_type in FrameType)


def test_an_event_that_is_new_in_the_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    before = draw_connection_states.drawing()
    monkeypatch.setitem(
        TRANSITIONS[ConnectionState.WELCOMED], (Sender.SERVER, FrameType.PING), ConnectionState.WELCOMED
    )
    monkeypatch.setitem(
        TRANSITIONS[ConnectionState.ATTACHED], (Sender.CLIENT, FrameType.HELLO), ConnectionState.GREETING
    )
    after = draw_connection_states.drawing()
    assert "| welcomed       |<-+ server: PING" in after
    assert "to greeting: client: HELLO" in after
    assert before != after


def test_a_way_out_that_some_state_lacks_is_drawn_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw_connection_states.drawing().count("CLOSE") == 1
    monkeypatch.delitem(TRANSITIONS[ConnectionState.NEW], (Sender.PEER, FrameType.CLOSE))
    assert draw_connection_states.drawing().count("CLOSE") == len(ConnectionState) - 1
