"""Whatever a peer sends: it is understood, or refused by an entry of the registry; and nobody else notices."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from meshq.errors import RemoteProtocolError
from meshq.wire import BY_NAME, ConnectionState, Frame, FrameType, ReceiveBuffer, Sender, encode, error_of
from meshq.wire._headers import Close
from tests.wire._frames_strategy import Mutation, Plan, Step, answers, mutations, plans
from tests.wire._mutations import Example, apply
from tests.wire._sans_io_peer import SansIOPeer

#: Mutations of one Hypothesis example; each is counted as one.
BATCH = 48

#: What the layer without I/O refuses by itself; the others are in ``test_refusals_of_a_node.py``.
BY_FRAMES = frozenset(
    {
        "bad_magic", "unknown_version", "unknown_type", "unknown_flags", "too_large", "bad_checksum", "bad_header",
        "bad_table", "illegal_frame", "bad_number", "bad_channel", "truncated", "no_common_version",
    }
)  # fmt: skip


def chunks(data: bytes, cut: int) -> list[bytes]:
    """The bytes in one piece, in two, or in many."""
    if cut % 3 == 0:
        return [data]
    if cut % 3 == 1:
        return [data[: cut % len(data)], data[cut % len(data) :]]
    size = 1 + cut % 700
    return [data[at : at + size] for at in range(0, len(data), size)]


def play(peer: SansIOPeer, example: Example, cut: int) -> str | None:
    """Send the example; returns the name of the refusal, if there was one."""
    try:
        for chunk in chunks(b"".join(example.pieces) or b"\0", cut):
            peer.feed(chunk)
        peer.end()
    except RemoteProtocolError as error:
        assert error.refusal in BY_NAME, error
        # It can be told to whoever sent this, who then knows what it means.
        (told,) = ReceiveBuffer().feed(encode(peer.goodbye(error.refusal, str(error))))
        close = Close.decode(told.header)
        assert isinstance(error_of(close.code, close.text), RemoteProtocolError)
        return error.refusal
    return None


class Tally:
    """What was tried and what came of it."""

    def __init__(self) -> None:
        self.tried = 0
        self.semantic = 0
        self.refusals: Counter[str] = Counter()
        self.understood = 0

    def __str__(self) -> str:
        found = ", ".join(f"{name} {count}" for name, count in self.refusals.most_common())
        return (
            f"{self.tried} tried, {self.semantic} of them with a right checksum, {self.understood} understood: {found}"
        )

    def count(self, example: Example, refusal: str | None) -> None:
        """Take note of one example."""
        self.tried += 1
        self.semantic += example.semantic
        if refusal is None:
            self.understood += 1
        else:
            self.refusals[refusal] += 1


@pytest.mark.slow
@settings(max_examples=200)
@given(plans)
def test_a_valid_conversation_is_understood_to_its_end(plan: Plan) -> None:
    steps = plan.render()
    peer = SansIOPeer(Sender.SERVER)
    for step in steps:
        peer.feed(encode(step.frame))
    peer.end()
    assert peer.frames == len(steps)
    assert peer.state is (ConnectionState.CLOSED if plan.closes else ConnectionState.ATTACHED)
    assert any(step.after_tag for step in steps) == any(step.frame.type is FrameType.SETTLE for step in steps)


@pytest.mark.slow
@settings(max_examples=100)
@given(answers)
def test_a_valid_conversation_of_a_node_is_understood_to_its_end(steps: list[Step]) -> None:
    peer = SansIOPeer(Sender.CLIENT)
    for step in steps:
        peer.feed(encode(step.frame))
    peer.end()
    assert (peer.frames, peer.state) == (len(steps), ConnectionState.ATTACHED)


def try_all(here: Sender, conversations: st.SearchStrategy[list[Step]], batches: int) -> Tally:
    """Change one thing about these conversations, again and again, and send them to a side that is ``here``."""
    tally = Tally()
    second = SansIOPeer(Sender.SERVER)
    for step in Plan((), closes=False).render():
        second.feed(encode(step.frame))
    ping = encode(Frame(FrameType.PING))

    @settings(max_examples=batches)
    @given(conversations, st.lists(mutations, min_size=BATCH, max_size=BATCH), st.integers(0, 2**16))
    def examples(steps: list[Step], changes: list[Mutation], cut: int) -> None:
        for mutation in changes:
            note(f"{mutation}")
            example = apply(steps, mutation)
            tally.count(example, play(SansIOPeer(here), example, cut))
            second.feed(ping)

    examples()
    # The connection beside it was served after each of them.
    assert second.frames == tally.tried + 3
    print(tally)
    return tally


@pytest.mark.exhaustive
def test_wrong_frames_of_a_client_get_typed_refusals_and_a_second_connection_is_served_throughout() -> None:
    # A broker hears 2,800 of them over sockets, in ``tests/real``.
    tally = try_all(Sender.SERVER, plans.map(Plan.render), 120)
    assert tally.tried >= 5_000
    assert tally.semantic * 2 >= tally.tried
    assert set(tally.refusals) == BY_FRAMES


@pytest.mark.exhaustive
def test_wrong_frames_of_a_node_get_typed_refusals_from_its_client() -> None:
    tally = try_all(Sender.CLIENT, answers, 120)
    assert tally.tried >= 5_000
    assert set(tally.refusals) == BY_FRAMES - {"no_common_version"}
