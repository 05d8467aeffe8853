"""Which frame may come from whom, and when: the table, and the machine that keeps to it."""

from __future__ import annotations

import itertools

import pytest

from meshq.errors import LocalProtocolError, RemoteProtocolError
from meshq.wire import NUMBERED, TRANSITIONS, ConnectionMachine, ConnectionState, FrameType, Sender

HANDSHAKE = [
    (Sender.CLIENT, FrameType.HELLO, ConnectionState.GREETING),
    (Sender.SERVER, FrameType.WELCOME, ConnectionState.WELCOMED),
    (Sender.CLIENT, FrameType.AUTHENTICATE, ConnectionState.AUTHENTICATING),
    (Sender.SERVER, FrameType.CHALLENGE, ConnectionState.CHALLENGED),
    (Sender.CLIENT, FrameType.PROOF, ConnectionState.PROVING),
    (Sender.SERVER, FrameType.AUTHENTICATED, ConnectionState.AUTHENTICATED),
    (Sender.CLIENT, FrameType.ATTACH, ConnectionState.ATTACHING),
    (Sender.SERVER, FrameType.ATTACHED, ConnectionState.ATTACHED),
]


def both(opener: Sender = Sender.CLIENT) -> tuple[ConnectionMachine, ConnectionMachine]:
    """The machines of a client or peer, and of its server."""
    return ConnectionMachine(opener, Sender.SERVER), ConnectionMachine(Sender.SERVER, opener)


def brought_to(state: ConnectionState, opener: Sender = Sender.CLIENT) -> tuple[ConnectionMachine, ConnectionMachine]:
    """Both sides in this state."""
    here, there = both(opener)
    for sender, frame_type, _ in HANDSHAKE:
        if here.state is state:
            break
        speaker, listener = (there, here) if sender is Sender.SERVER else (here, there)
        speaker.sending(frame_type)
        listener.received(frame_type)
        if here.state is ConnectionState.AUTHENTICATED and state is ConnectionState.PROBING:
            here.sending(FrameType.PROBE)
            there.received(FrameType.PROBE)
            break
        if here.state is ConnectionState.AUTHENTICATED and state is ConnectionState.REPLICATING:
            here.sending(FrameType.REPLICATE)
            there.received(FrameType.REPLICATE)
            break
    if state is ConnectionState.CLOSED:
        here.sending(FrameType.CLOSE)
        there.received(FrameType.CLOSE)
    assert here.state is there.state is state
    return here, there


def test_the_handshake_goes_strictly_in_turn() -> None:
    here, there = both()
    assert here.state is ConnectionState.NEW
    for sender, frame_type, state in HANDSHAKE:
        speaker, listener = (there, here) if sender is Sender.SERVER else (here, there)
        speaker.sending(frame_type)
        listener.received(frame_type)
        assert here.state is there.state is state


@pytest.mark.parametrize(
    ("state", "opener"),
    # Only a peer follows a log.
    [
        (state, opener)
        for state, opener in itertools.product(ConnectionState, (Sender.CLIENT, Sender.PEER))
        if (state, opener) != (ConnectionState.REPLICATING, Sender.CLIENT)
    ],
    ids=lambda value: value.value,
)
def test_every_frame_is_legal_exactly_where_the_table_has_it(state: ConnectionState, opener: Sender) -> None:
    for sender, frame_type in itertools.product((opener, Sender.SERVER), FrameType):
        target = TRANSITIONS[state].get((sender, frame_type))
        here, there = brought_to(state, opener)
        speaker, listener = (there, here) if sender is Sender.SERVER else (here, there)
        if target is None:
            with pytest.raises(LocalProtocolError) as local:
                speaker.sending(frame_type)
            assert f"{sender.value} may not send {frame_type.name} in state {state.value}" in str(local.value)
            with pytest.raises(RemoteProtocolError) as remote:
                listener.received(frame_type)
            assert remote.value.refusal == "illegal_frame"
            assert f"{frame_type.name} from the {sender.value} in state {state.value}" in str(remote.value)
        else:
            speaker.sending(frame_type)
            listener.received(frame_type)
        assert speaker.state is listener.state is (target or state)


def test_a_session_is_asked_for_only_by_who_is_authenticated() -> None:
    before = [state for state, events in TRANSITIONS.items() if (Sender.CLIENT, FrameType.ATTACH) in events]
    assert before == [ConnectionState.AUTHENTICATED]
    judging = [state for state, events in TRANSITIONS.items() if ConnectionState.AUTHENTICATED in events.values()]
    assert judging == [ConnectionState.AUTHENTICATING, ConnectionState.PROVING]


def test_who_was_asked_for_a_proof_is_not_let_in_without_one() -> None:
    assert set(TRANSITIONS[ConnectionState.CHALLENGED].values()) == {ConnectionState.PROVING, ConnectionState.CLOSED}
    assert (Sender.SERVER, FrameType.CHALLENGE) not in TRANSITIONS[ConnectionState.PROVING]


def test_a_side_that_says_its_role_is_held_to_it() -> None:
    machine = ConnectionMachine(Sender.SERVER, Sender.CLIENT)
    machine.received(FrameType.HELLO)
    machine.meet(Sender.PEER)
    with pytest.raises(RemoteProtocolError, match="SEND from the peer in state greeting"):
        machine.received(FrameType.SEND)


def test_numbered_frames_go_only_over_an_attached_connection_and_those_of_a_log_where_one_is_followed() -> None:
    log = {FrameType.LOG, FrameType.LOGGED}
    legal = {ConnectionState.ATTACHED: NUMBERED - log, ConnectionState.REPLICATING: log}
    for state, events in TRANSITIONS.items():
        numbered = {frame_type for _, frame_type in events if frame_type in NUMBERED}
        assert numbered == legal.get(state, set())


def test_a_log_is_followed_by_nodes_only() -> None:
    openers = [sender for events in TRANSITIONS.values() for sender, frame in events if frame is FrameType.REPLICATE]
    assert openers == [Sender.PEER]


def test_every_frame_type_is_legal_somewhere_and_every_state_is_reached() -> None:
    assert {frame_type for events in TRANSITIONS.values() for _, frame_type in events} == set(FrameType)
    assert {target for events in TRANSITIONS.values() for target in events.values()} | {ConnectionState.NEW} == set(
        ConnectionState
    )


def test_good_bye_may_be_said_by_everybody_at_any_time_and_nothing_after_it() -> None:
    for state, events in TRANSITIONS.items():
        for sender in Sender:
            target = events.get((sender, FrameType.CLOSE))
            assert target is (None if state is ConnectionState.CLOSED else ConnectionState.CLOSED)
    assert TRANSITIONS[ConnectionState.CLOSED] == {}


def test_no_frame_is_both_the_servers_and_the_clients_but_signs_of_life_and_good_bye() -> None:
    events = [event for table in TRANSITIONS.values() for event in table]
    of = {sender: {frame for who, frame in events if who is sender} for sender in Sender}
    shared = of[Sender.CLIENT] & of[Sender.SERVER]
    # A node says of itself in the same frame who it is; branches and credits are told, and told back.
    both = {FrameType.NODE, FrameType.BRANCH, FrameType.ADDRESS_CREDIT}
    assert of[Sender.PEER] & of[Sender.SERVER] == {*shared, *both}
    assert shared == {FrameType.PING, FrameType.PONG, FrameType.RECEIVED, FrameType.CLOSE}
    followers = {FrameType.REPLICATE, FrameType.LOGGED}
    # What names queues by their numbers, and runs by a link's, is for nodes alone.
    assert of[Sender.PEER] - of[Sender.CLIENT] == {FrameType.LINK, FrameType.FORWARD, *both, *followers}
    assert of[Sender.CLIENT] <= of[Sender.PEER]


def test_a_machine_shows_whose_it_is_and_its_state() -> None:
    assert repr(ConnectionMachine(Sender.SERVER, Sender.CLIENT)) == "<ConnectionMachine server new>"
