"""Draw the states of a connection from the table that the code runs on: ``python tools/draw_connection_states.py``.

A test compares the drawing in the documentation with the table.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from meshq.wire import TRANSITIONS, ConnectionState, FrameType, Sender

PAGE = Path(__file__).parents[1] / "docs" / "design" / "connection-states.md"
BOX = 16
WIDTH = 96

INTRODUCTION = """# States of a connection

Drawn from the table in `src/meshq/wire/_connection_machine.py` by `python tools/draw_connection_states.py`.
A test fails when it is stale.
An arrow says who sends which frame; what no arrow says is refused as `illegal_frame`.
"""


def edges(state: ConnectionState) -> dict[ConnectionState, dict[tuple[Sender, ...], list[FrameType]]]:
    """Where one gets from a state, by which frames of whom; frames that the same sides may send stand together."""
    senders: dict[tuple[ConnectionState, FrameType], tuple[Sender, ...]] = {}
    for (sender, frame_type), target in TRANSITIONS[state].items():
        senders[target, frame_type] = (*senders.get((target, frame_type), ()), sender)
    found: dict[ConnectionState, dict[tuple[Sender, ...], list[FrameType]]] = {}
    for (target, frame_type), who in senders.items():
        found.setdefault(target, {}).setdefault(who, []).append(frame_type)
    return found


def words(said: dict[tuple[Sender, ...], list[FrameType]], width: int) -> Iterator[str]:
    """Who says what, a line or more for each group of senders."""
    for who, frames in said.items():
        names = ", ".join(sender.value for sender in who)
        text = f"{names}: {', '.join(frame.name for frame in sorted(frames))}"
        yield from textwrap.wrap(text, width, subsequent_indent=" " * (len(names) + 2))


def everywhere() -> tuple[ConnectionState, dict[tuple[Sender, ...], list[FrameType]]] | None:
    """The way that leads out of every state that has any, if there is one."""
    open_states = [state for state in ConnectionState if TRANSITIONS[state]]
    for target, said in edges(open_states[0]).items():
        if all(edges(state).get(target) == said for state in open_states):
            return target, said
    return None


def drawing() -> str:
    """The diagram: states from top to bottom, in the order in which they are declared."""
    common = everywhere()
    lines: list[str] = []
    states = list(ConnectionState)
    for index, state in enumerate(states):
        following = states[index + 1] if index + 1 < len(states) else None
        lines += box(state, edges(state).get(state, {}))
        if following is None:
            continue
        for target, said in edges(state).items():
            if target not in (state, following) and (target, said) != common:
                lines += [f"        |  to {target.value}: {line}" for line in words(said, WIDTH - 20)]
        said = edges(state).get(following, {})
        lines += [f"        |  {line}" for line in words(said, WIDTH - 40)]
        if (following, said) == common:
            lines[-1] += "  (from every state above)"
        lines.append("        v" if said else "")
    return "\n".join(line.rstrip() for line in lines)


def box(state: ConnectionState, loop: dict[tuple[Sender, ...], list[FrameType]]) -> list[str]:
    """A state, and beside it what leaves it as it is."""
    edge = "+" + "-" * BOX + "+"
    rows = [edge, f"| {state.value:<{BOX - 1}}|", edge]
    said = list(words(loop, WIDTH - BOX - 8))
    rows += [f"{'':8}|{'':{BOX - 7}}"] * (len(said) - 2)
    for number, line in enumerate(said):
        rows[number + 1] += f"{'<-+ ' if number == 0 else '  | '}{line}"
    return rows


def table() -> str:
    """Every legal frame, a row for each state and way out of it."""
    rows = ["| state | from | frames | then |", "| --- | --- | --- | --- |"]
    for state in ConnectionState:
        for target, said in edges(state).items():
            for who, frames in said.items():
                names = ", ".join(sender.value for sender in who)
                types = ", ".join(frame.name for frame in sorted(frames))
                rows.append(f"| {state.value} | {names} | {types} | {target.value} |")
    return "\n".join(rows)


def meanings() -> str:
    """What is true in each state, in the words of the code."""
    lines = inspect.cleandoc(ConnectionState.__doc__ or "").splitlines()
    return "\n".join(line.replace("``", "`") for line in lines if line.startswith(("- ", "  ")))


def page() -> str:
    """The whole page."""
    return (
        "\n\n".join([INTRODUCTION.rstrip(), meanings(), f"```text\n{drawing()}\n```", "## Every legal frame", table()])
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
