"""What a link's own end makes of what the other node says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meshq.client.calls._deadlines import WaitDeadlines
from meshq.client.calls._link_failures import LinkFailures
from meshq.client.session._cluster_link_channel import QUEUES_MAX, ClusterLinkChannel, ForwardedRun
from meshq.client.settings._settings import ClientSettings
from meshq.errors import ClosedError, MeshqError, NotActiveError, RemoteProtocolError
from meshq.wire import Binding, Forward, Frame, FrameType, LinkOpening, NodeNews, encode_run


class Calls:
    """Calls that wait until the test answers them."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def add(self, call: Any) -> None:
        self.made.append(call)


class Runs:
    """Credit."""

    open = True
    sent_bytes = 0


class FakeSession:
    """As much of a session as a line needs: its stream, its channels and its facts."""

    node_id = b"n" * 16

    def __init__(self) -> None:
        self.pending_calls, self.send_queue = Calls(), Runs()
        self.channels = 0
        self.said: list[Frame] = []

    def new(self, owner: object) -> int:
        self.channels += 1
        return self.channels

    def out(self, frame: Frame) -> None:
        self.said.append(frame)


class Owner:
    """What came over the link."""

    def __init__(self) -> None:
        self.openings = 0
        self.given_up: list[MeshqError] = []
        self.unread: list[int] = []
        self.bindings: list[Binding] = []
        self.opened_at: list[int] = []
        self.stores: list[bytes] = []
        self.numbers: list[int] = []
        self.refusals: list[MeshqError] = []
        self.snapshots = 0

    def opening(self, node_id: bytes) -> LinkOpening:
        self.openings += 1
        return LinkOpening(link=b"l" * 16, node_id=node_id, instance=b"i" * 16, node_name="here")

    def described(self, binding: Binding) -> None:
        self.bindings.append(binding)

    def opened(self, number: int, store: bytes, features: Sequence[str]) -> None:
        self.opened_at.append(number)
        self.stores.append(store)

    def snapshot(self) -> None:
        self.snapshots += 1

    def stored(self, number: int) -> None:
        self.numbers.append(number)

    def refused(self, error: MeshqError) -> None:
        self.refusals.append(error)

    def late(self, error: MeshqError) -> None:
        self.given_up.append(error)

    def unreadable(self, number: int, error: MeshqError) -> None:
        self.unread.append(number)

    def announcement(self) -> NodeNews | None:
        return None


def line() -> tuple[ClusterLinkChannel, FakeSession, Owner]:
    session, owner = FakeSession(), Owner()
    made = ClusterLinkChannel(
        session,  # type: ignore[arg-type]
        session.pending_calls,  # type: ignore[arg-type]
        session,  # type: ignore[arg-type]
        session,  # type: ignore[arg-type]
        deadlines=WaitDeadlines(ClientSettings(), LinkFailures()),
        credit=session.send_queue,
        events=owner,
    )
    made.renew()
    return made, session, owner


def run(number: int, rows: int = 2, step: int = 1) -> ForwardedRun:
    return ForwardedRun(number, step, 1, encode_run([b"x"] * rows), "q", b"p" * 16, 1, 0, True, (1,))


def confirm(number: int) -> Frame:
    return Frame(FrameType.CONFIRM, channel=1, first=number)


def test_runs_wait_until_the_link_is_open_and_for_credit() -> None:
    made, session, _ = line()
    made.submit(run(1))
    assert session.said == []
    made._opened({"number": 0}, None)
    assert [frame.first for frame in session.said] == [1]
    session.send_queue.open = False
    made.submit(run(3))
    assert len(session.said) == 1
    session.send_queue.open = True
    made.pump()
    assert [frame.first for frame in session.said] == [1, 3]


def test_a_run_for_many_queues_goes_in_parts_each_as_credit_allows() -> None:
    made, session, owner = line()
    made._opened({"number": 0}, None)
    many = tuple(range(2**32 - 1 - 2 * QUEUES_MAX - 1, 2**32 - 1))
    session.send_queue.open = False
    made.submit(run(1)._replace(queues=many, address="ü" * 256))
    assert made.unconfirmed == 2
    session.send_queue.open = True
    made.pump()
    assert made.unconfirmed == 2
    headers = [Forward.decode(frame.header) for frame in session.said]
    assert [len(header.queues) for header in headers] == [QUEUES_MAX, QUEUES_MAX, 1]
    assert [header.more for header in headers] == [True, True, False]
    assert sum((header.queues for header in headers), ()) == many
    assert {(frame.first, frame.count) for frame in session.said} == {(1, 2)}
    made.confirm(confirm(2))
    assert (list(made.sent), owner.numbers, made.unconfirmed) == ([], [2], 0)


def test_a_confirm_is_of_what_was_sent() -> None:
    made, _, owner = line()
    made._opened({"number": 0}, None)
    made.submit(run(1))
    made.submit(run(3, rows=3, step=2))
    made.confirm(confirm(2))
    made.confirm(confirm(7))
    assert owner.numbers == [2, 7]
    for number in (7, 8):
        with pytest.raises(RemoteProtocolError) as caught:
            made.confirm(confirm(number))
        assert caught.value.refusal == "bad_number"


def test_a_confirm_beyond_what_was_sent_settles_nothing() -> None:
    made, _, owner = line()
    made._opened({"number": 0}, None)
    made.submit(run(1))
    with pytest.raises(RemoteProtocolError):
        made.confirm(confirm(3))
    assert owner.numbers == []
    assert len(made.sent) == 1


def test_another_session_begins_with_nothing() -> None:
    made, session, owner = line()
    made._opened({"number": 0}, None)
    made.submit(run(1))
    session.send_queue.open = False
    made.submit(run(3))
    made.renew()
    assert (len(made.sent), len(made.unsent), made._life.state, owner.openings) == (0, 0, "opening", 2)
    assert made.channel == 2


@pytest.mark.parametrize("values", [{}, {"number": -1}, {"number": "1"}, {"number": True}, {"number": 2**63}])
def test_a_link_that_is_opened_without_its_number_breaks_the_protocol(values: dict[str, Any]) -> None:
    made, _, owner = line()
    with pytest.raises(RemoteProtocolError) as caught:
        made._opened(values, None)
    assert caught.value.refusal == "bad_header"
    assert (made._life.state, owner.opened_at) == ("opening", [])
    made._opened({"number": 7}, None)
    assert (made._life.state, owner.opened_at) == ("open", [7])


def test_a_node_that_stops_or_a_link_that_ends_is_no_refusal() -> None:
    made, _, owner = line()
    made._opened({}, NotActiveError("it stops"))
    made._opened({}, ClosedError("the link is closed"))
    assert (made._life.state, owner.refusals) == ("opening", [])
    made._opened({}, MeshqError("something else"))
    assert len(owner.refusals) == 1


@pytest.mark.parametrize(
    "binding",
    [
        Binding(queue=0, name="q", address="q"),
        Binding(queue=2**32, name="q", address="q"),
        Binding(queue=0, gone=True),
        Binding(queue=1, address="q"),
        Binding(queue=1, name="q"),
        Binding(queue=1, name="a\nb", address="q"),
        Binding(queue=1, name="q", address="a::b"),
        Binding(queue=1, name="q", address="q" * 513),
        Binding(queue=1, name="q", address="q", routing="both"),
        Binding(queue=1, name="$meshq.cluster.mesh.x", address="$meshq.cluster.mesh.x"),
        Binding(queue=1, name="q", address="q", path=("0" * 31,)),
        Binding(queue=1, name="q", address="q", path=("0" * 32, "G" * 32)),
        Binding(queue=1, name="q", address="q", path=("0" * 32,), node_name="a\nb"),
        Binding(queue=1, name="q", address="q", path=("0" * 32,), state="gone"),
    ],
)
def test_a_queue_that_cannot_be_breaks_the_protocol(binding: Binding) -> None:
    made, _, owner = line()
    with pytest.raises(RemoteProtocolError) as caught:
        made.binding(Frame(FrameType.BINDING, channel=1, header=binding.encode()))
    assert caught.value.refusal == "bad_header"
    assert owner.bindings == []


@pytest.mark.parametrize(
    "binding",
    [
        Binding(queue=2**32 - 1, name="ü", address="q" * 512, routing="multicast"),
        Binding(queue=3, gone=True),
        Binding(queue=4, name="q", address="q", path=("0f" * 16,), node_name="c", state="away"),
    ],
)
def test_a_queue_that_can_be_is_told(binding: Binding) -> None:
    made, _, owner = line()
    made.binding(Frame(FrameType.BINDING, channel=1, header=binding.encode()))
    assert owner.bindings == [binding]
