"""Handshakes recorded by released versions: this version reads them, and agrees with who said them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq.errors import RemoteProtocolError
from meshq.wire import (
    BY_NAME,
    SCHEMAS,
    Attach,
    Attached,
    Authenticate,
    Authenticated,
    Close,
    ConnectionMachine,
    ConnectionState,
    Frame,
    FrameType,
    Header,
    Hello,
    ReceiveBuffer,
    Sender,
    Welcome,
    agree,
    encode,
    error_of,
    header_of,
)

FORMATS = Path(__file__).parents[1] / "data" / "formats"
NODE = bytes.fromhex("6d1f0b5c9a274e83b0d2417f5ae8c316")
KEY = bytes.fromhex("c0ffee00112233445566778899aabbcc")

GREETING: list[Header] = [
    Hello(oldest=1, newest=1, label="flights"),
    Welcome(version=1, node_id=NODE, node_name="shop", mechanisms=("none",)),
    Authenticate(mechanism="none"),
    Authenticated(),
]
#: What was said, as this version understands it.
SAID: dict[str, list[Header]] = {
    "hello-1/first": [*GREETING, Attach(ttl_ms=30_000), Attached(session=7, key=KEY, ttl_ms=30_000)],
    "hello-1/resumed": [
        *GREETING,
        Attach(session=7, key=KEY, received=3, ttl_ms=30_000),
        Attached(session=7, key=KEY, resumed=True, received=12, ttl_ms=30_000),
    ],
    "hello-1/refused": [
        Hello(oldest=2, newest=3, label="flights"),
        Close(code=32, text="there is no common protocol version: the client speaks 2-3, the node 1-1"),
    ],
}
EXCHANGES = sorted(str(path.relative_to(FORMATS)) for path in FORMATS.glob("hello-*/*") if path.is_dir())


def recorded(exchange: str) -> list[tuple[Sender, bytes]]:
    """Who said what, in order."""
    paths = sorted((FORMATS / exchange).glob("*.frame"))
    assert [path.name.split("-")[0] for path in paths] == [str(number) for number in range(1, len(paths) + 1)]
    return [(Sender(path.name.split("-")[1]), path.read_bytes()) for path in paths]


def test_every_recorded_exchange_is_one_that_is_understood_here() -> None:
    assert sorted(SAID) == EXCHANGES


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_recorded_exchange_is_read_as_what_was_said(exchange: str) -> None:
    machines = {
        Sender.CLIENT: ConnectionMachine(Sender.CLIENT, Sender.SERVER),
        Sender.SERVER: ConnectionMachine(Sender.SERVER, Sender.CLIENT),
    }
    buffers = {sender: ReceiveBuffer() for sender in machines}
    found: list[Header] = []
    for sender, data in recorded(exchange):
        (frame,) = buffers[sender].feed(data)
        machines[sender].sending(frame.type)
        machines[Sender.SERVER if sender is Sender.CLIENT else Sender.CLIENT].received(frame.type)
        found.append(header_of(frame, SCHEMAS[frame.type]))
    assert found == SAID[exchange]
    assert {machine.state for machine in machines.values()} == {
        ConnectionState.CLOSED if exchange.endswith("refused") else ConnectionState.ATTACHED
    }


@pytest.mark.parametrize("exchange", [name for name in EXCHANGES if name.startswith("hello-1/")])
def test_version_1_is_still_spoken_to_the_byte(exchange: str) -> None:
    for (_, data), header in zip(recorded(exchange), SAID[exchange], strict=True):
        assert encode(Frame(header.frame_type, header=header.encode())) == data


def test_the_client_of_each_version_is_agreed_with() -> None:
    for exchange in EXCHANGES:
        (frame,) = ReceiveBuffer().feed(recorded(exchange)[0][1])
        hello = header_of(frame, Hello)
        if exchange.endswith("refused"):
            with pytest.raises(RemoteProtocolError) as caught:
                agree(hello)
            assert caught.value.refusal == "no_common_version"
        else:
            assert agree(hello) == (int(exchange[6]), ())


def test_a_client_that_is_too_new_is_told_both_ranges() -> None:
    (frame,) = ReceiveBuffer().feed(recorded("hello-1/refused")[0][1])
    with pytest.raises(RemoteProtocolError) as caught:
        agree(header_of(frame, Hello))
    # The very words that were recorded, as the client hears them.
    (told,) = ReceiveBuffer().feed(recorded("hello-1/refused")[1][1])
    close = header_of(told, Close)
    assert close == Close(code=BY_NAME[caught.value.refusal].number, text=str(caught.value))
    error = error_of(close.code, close.text)
    assert isinstance(error, RemoteProtocolError)
    assert "2-3" in str(error)
    assert "1-1" in str(error)


def test_a_newer_client_that_still_knows_this_version_is_agreed_down() -> None:
    hello = Hello(oldest=1, newest=3, label="flights", features=("later",))
    (frame,) = ReceiveBuffer().feed(encode(Frame(FrameType.HELLO, header=hello.encode())))
    assert agree(header_of(frame, Hello)) == (1, ())


def test_a_greeting_of_a_later_version_is_understood_as_far_as_it_may_be_ignored() -> None:
    _, data = recorded("hello-1/first")[0]
    (frame,) = ReceiveBuffer().feed(data)
    pairs = frame.header[1:]
    later = Frame(FrameType.HELLO, header=bytes([frame.header[0] + 1]) + pairs + b"\xa6~later\x01")
    (read,) = ReceiveBuffer().feed(encode(later))
    assert header_of(read, Hello) == SAID["hello-1/first"][0]


def test_a_frame_of_a_later_version_is_refused_with_both_versions_named() -> None:
    _, data = recorded("hello-1/first")[0]
    with pytest.raises(RemoteProtocolError, match="version 2, this side speaks 1-1"):
        ReceiveBuffer().feed(data[:2] + b"\2" + data[3:])
