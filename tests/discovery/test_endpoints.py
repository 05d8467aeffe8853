"""The endpoints: each keeps the contract of an endpoint, in memory and on the real loopback interface and disk."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio

from meshq.abc import BroadcastChannel, Env
from meshq.discovery import SharedDirectory, StaticUnicast, UDPMulticast
from meshq.discovery._shared_directory_format import MemberFile, decode_member, encode_member
from meshq.env import real_env
from meshq.errors import BrokenError, SettingsError
from meshq.testing import ENDPOINT_CHECKS, EndpointPlace, InlineThreads, MemoryDatagrams, SimDisk

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "shared-directory.md"
GROUP = "231.7.7.7"
LOOPBACK = "127.0.0.1"
PATIENCE_S = 5.0

Check = Callable[[EndpointPlace], Awaitable[None]]
each_check = pytest.mark.parametrize("check", ENDPOINT_CHECKS)


def in_memory(world: MemoryDatagrams | None = None, host: str = "a") -> Env:
    """The outside of a host without sockets and disks."""
    return attrs.evolve(
        real_env(),
        datagrams=(world or MemoryDatagrams()).host(host),
        disk=SimDisk(random.Random(1)),
        threads=InlineThreads(),
    )


def free_ports(count: int) -> list[int]:
    """UDP ports of the loopback interface that no socket had a moment ago."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


async def came(channel: BroadcastChannel, within_s: float = PATIENCE_S) -> bytes | None:
    with trio.move_on_after(within_s):
        return await channel.receive()
    return None


# -- the contract


@each_check
async def test_a_multicast_group_conforms_in_memory(check: Check) -> None:
    await check(EndpointPlace(UDPMulticast(GROUP, 9876), in_memory()))


@each_check
async def test_a_list_of_addresses_conforms_in_memory(check: Check) -> None:
    await check(EndpointPlace(StaticUnicast(["a:1", "a:2", "a:3"]), in_memory()))


@each_check
async def test_a_shared_directory_conforms_on_a_simulated_disk(check: Check) -> None:
    await check(EndpointPlace(SharedDirectory("/shared", "lan"), in_memory()))


@pytest.mark.real
@each_check
async def test_a_multicast_group_conforms_on_the_loopback_interface(check: Check) -> None:
    endpoint = UDPMulticast(GROUP, free_ports(1)[0], bind_address=LOOPBACK)
    await check(EndpointPlace(endpoint, real_env()))


@pytest.mark.real
@each_check
async def test_a_list_of_addresses_conforms_on_the_loopback_interface(check: Check) -> None:
    endpoint = StaticUnicast([f"{LOOPBACK}:{port}" for port in free_ports(3)])
    await check(EndpointPlace(endpoint, real_env()))


@pytest.mark.real
@each_check
async def test_a_shared_directory_conforms_on_a_real_disk(check: Check, tmp_path: Path) -> None:
    await check(EndpointPlace(SharedDirectory(tmp_path / "shared", "lan"), real_env()))


# -- multicast


@pytest.mark.parametrize("group", ["224.0.0.1", "231.7.7.7", "239.255.255.255"])
def test_a_group_has_an_address_of_class_d(group: str) -> None:
    assert UDPMulticast(group, 9876).group == group


def test_a_group_is_named_by_letters_and_digits() -> None:
    default, other = UDPMulticast.named("default"), UDPMulticast.named("Default", bind_address="127.0.0.1")
    assert default == UDPMulticast.named("default") != other and default.group.startswith("239.255.")
    assert other.bind_address == "127.0.0.1"
    for name in ("", "a-b", "ä", "a" * 101, 7):
        with pytest.raises(SettingsError, match="letters and digits"):
            UDPMulticast.named(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["203.0.113.255", "224.0.0.0", "240.0.0.0", "::1", "lan", "", 5, None])
def test_any_other_address_is_no_group(group: str) -> None:
    with pytest.raises(SettingsError, match=r"allowed: an address from 224\.0\.0\.1 to 239\.255\.255\.255"):
        UDPMulticast(group, 9876)


@pytest.mark.parametrize("port", [0, 65_536, -1, "9876", 1.5, None])
def test_a_group_needs_a_port(port: int) -> None:
    with pytest.raises(SettingsError, match=f"port={port!r}"):
        UDPMulticast(GROUP, port)


def test_address_and_port_of_a_group_can_not_be_left_out() -> None:
    with pytest.raises(TypeError, match="group"):
        UDPMulticast()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="port"):
        UDPMulticast(GROUP)  # type: ignore[call-arg]


def test_a_port_to_send_from_goes_with_an_address_only() -> None:
    assert UDPMulticast(GROUP, 9876).bind_port is None
    endpoint = UDPMulticast(GROUP, 9876, bind_address="172.16.9.3", bind_port=5432)
    assert (endpoint.bind_address, endpoint.bind_port) == ("172.16.9.3", 5432)
    with pytest.raises(SettingsError, match="together with bind_address"):
        UDPMulticast(GROUP, 9876, bind_port=5432)
    with pytest.raises(SettingsError, match="bind_address='localhost'"):
        UDPMulticast(GROUP, 9876, bind_address="localhost")
    with pytest.raises(SettingsError, match="bind_port=0"):
        UDPMulticast(GROUP, 9876, bind_address=LOOPBACK, bind_port=0)


@pytest.mark.real
async def test_datagrams_leave_from_the_address_and_port_that_were_chosen() -> None:
    port, chosen = free_ports(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
        raw.setblocking(False)
        raw.bind((GROUP, port))
        member = socket.inet_aton(GROUP) + socket.inet_aton(LOOPBACK)
        raw.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        for bind_port in (chosen, None):
            sender = await UDPMulticast(GROUP, port, bind_address=LOOPBACK, bind_port=bind_port).open_sender(real_env())
            await sender.broadcast(b"hello")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(raw)
            datagram, source = raw.recvfrom(100)
            assert (datagram, source[0]) == (b"hello", LOOPBACK)
            assert (source[1] == chosen) == (bind_port is not None)
            sender.close()


async def test_two_groups_on_one_port_and_one_group_on_two_ports_hear_nothing_of_each_other() -> None:
    world = MemoryDatagrams()
    endpoints = [UDPMulticast(GROUP, 1), UDPMulticast("231.7.7.8", 1), UDPMulticast(GROUP, 2)]
    channels = [await endpoint.open(in_memory(world)) for endpoint in endpoints]
    await channels[0].broadcast(b"first")
    assert [await came(channel, 1.0) for channel in channels] == [b"first", None, None]


@pytest.mark.real
async def test_two_real_groups_on_one_port_hear_nothing_of_each_other() -> None:
    (port,) = free_ports(1)
    endpoints = [UDPMulticast(group, port, bind_address=LOOPBACK) for group in (GROUP, "231.7.7.8")]
    one, two = [await endpoint.open(real_env()) for endpoint in endpoints]
    await one.broadcast(b"first")
    await two.broadcast(b"second")
    assert (await came(one), await came(two)) == (b"first", b"second")
    one.close()
    two.close()


async def test_a_listener_at_one_interface_hears_nothing_that_comes_by_another_one() -> None:
    world = MemoryDatagrams()
    bound = await UDPMulticast(GROUP, 9876, bind_address=LOOPBACK).open(in_memory(world))
    unbound = await UDPMulticast(GROUP, 9876).open(in_memory(world))
    sender = await UDPMulticast(GROUP, 9876).open_sender(in_memory(world, "b"))
    await sender.broadcast(b"by the network")
    assert (await came(bound, 1.0), await came(unbound, 1.0)) == (None, b"by the network")
    here = await UDPMulticast(GROUP, 9876, bind_address=LOOPBACK).open_sender(in_memory(world))
    await here.broadcast(b"by loopback")
    assert await came(bound, 1.0) == b"by loopback"


async def test_an_interface_that_this_host_does_not_have_is_said_when_the_channel_is_opened() -> None:
    with pytest.raises(BrokenError, match=r"172\.16\.9\.3:any port can't be bound"):
        await UDPMulticast(GROUP, 9876, bind_address="172.16.9.3").open(in_memory())


# -- lists of addresses


@pytest.mark.parametrize(
    "addresses",
    [[], "a:1", ["a"], ["a:0"], ["a:65536"], [":1"], ["[::1]:1"], ["tcp://a:1"], ["a:1", "a:1"], [5], 5, ["a:x"], [[]]],
)
def test_a_list_has_different_hosts_with_ports(addresses: list[str]) -> None:
    with pytest.raises(SettingsError, match="addresses"):
        StaticUnicast(addresses)


async def test_each_listener_takes_the_first_address_that_is_free_on_its_host() -> None:
    world = MemoryDatagrams()
    endpoint = StaticUnicast(["a:1", "b:1", "c:1"])
    channels = [await endpoint.open(in_memory(world, host)) for host in ("c", "b", "a")]
    await channels[0].broadcast(b"from c")
    assert [await came(channel) for channel in channels] == [b"from c"] * 3
    with pytest.raises(BrokenError, match="no address of the list is free on this host: a:1, b:1, c:1"):
        await endpoint.open(in_memory(world, "c"))


async def test_a_sender_takes_no_address_of_the_list() -> None:
    world = MemoryDatagrams()
    endpoint = StaticUnicast(["a:1", "b:1"])
    sender = await endpoint.open_sender(in_memory(world))
    channels = [await endpoint.open(in_memory(world, host)) for host in "ab"]
    await sender.broadcast(b"hello")
    assert [await came(channel) for channel in channels] == [b"hello", b"hello"]


# -- shared directories


def test_the_example_of_the_document_is_the_file_of_a_member() -> None:
    lines = re.findall(r"^16  (.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    file = bytes.fromhex(" ".join(lines))
    assert file == encode_member(MemberFile(1, b"hello"))
    assert decode_member(file) == MemberFile(1, b"hello")
    for place in range(len(file)):
        for bit in range(8):
            damaged = bytearray(file)
            damaged[place] ^= 1 << bit
            assert decode_member(bytes(damaged)) is None, place
        assert decode_member(file[:place]) is None


def shared(disk: SimDisk) -> Env:
    return attrs.evolve(in_memory(), disk=disk)


async def test_channels_of_one_directory_with_different_names_stay_apart() -> None:
    env = in_memory()
    first, second = [await SharedDirectory("/shared", name).open(env) for name in ("one", "two")]
    await first.broadcast(b"hello")
    assert await came(second, 5.0) is None


async def test_a_member_has_one_file_and_the_file_of_a_dead_one_is_not_heard_and_goes() -> None:
    env = shared(SimDisk(random.Random(1)))
    endpoint = SharedDirectory("/shared", "lan")
    dead = await endpoint.open(env)
    for number in range(3):
        await dead.broadcast(b"%d" % number)
    dead.close()
    assert len(env.disk.names("/shared/lan")) == 1
    listener = await endpoint.open(env)
    assert await came(listener, 49.0) is None
    assert len(env.disk.names("/shared/lan")) == 1
    assert await came(listener, 2.0) is None
    assert env.disk.names("/shared/lan") == []


async def test_a_living_member_whose_file_was_removed_is_heard_again() -> None:
    env = shared(SimDisk(random.Random(1)))
    endpoint = SharedDirectory("/shared", "lan")
    slow, listener = await endpoint.open(env), await endpoint.open(env)
    await slow.broadcast(b"first")
    assert await came(listener) == b"first"
    assert await came(listener, 100.0) is None and env.disk.names("/shared/lan") == []
    await slow.broadcast(b"first")
    assert await came(listener) == b"first"


async def test_a_datagram_that_is_the_same_again_is_heard_again() -> None:
    env = in_memory()
    endpoint = SharedDirectory("/shared", "lan")
    sender, listener = await endpoint.open(env), await endpoint.open(env)
    for _ in range(3):
        await sender.broadcast(b"same")
        assert await came(listener) == b"same"


@pytest.mark.parametrize("content", [b"", b"MQSD", b"x" * 10_000, b"MQSD\x02" + bytes(40)])
async def test_files_of_others_in_the_directory_are_no_datagrams(content: bytes) -> None:
    env = shared(SimDisk(random.Random(1)))
    endpoint = SharedDirectory("/shared", "lan")
    listener = await endpoint.open(env)
    for name in ("0" * 32, "readme", "0" * 32 + ".new"):
        file = env.disk.open(f"/shared/lan/{name}", create=True)
        if content:
            file.write_at(0, [content])
        file.close()
    assert await came(listener, 60.0) is None
    assert env.disk.names("/shared/lan") == ["readme"]


@pytest.mark.parametrize("content", [b"", b"junk"])
async def test_junk_by_the_thousand_hides_neither_the_members_nor_new_ones(content: bytes) -> None:
    disk = SimDisk(random.Random(1))
    env = shared(disk)
    endpoint = SharedDirectory("/shared", "lan")
    listener, sender = await endpoint.open(env), await endpoint.open(env)
    await sender.broadcast(b"first")
    assert await came(listener) == b"first"
    for number in range(3_000):
        # Before the name of each member in the order of names.
        file = env.disk.open(f"/shared/lan/{number:032x}", create=True)
        if content:
            file.write_at(0, [content])
        file.close()
    await sender.broadcast(b"again")
    assert await came(listener, 0.5) == b"again"
    late = await endpoint.open(env)
    await late.broadcast(b"late")
    assert await came(listener, 5.0) == b"late"
    await sender.broadcast(b"more")
    assert {await came(late, 5.0), await came(listener, 0.5)} == {b"more"}


async def test_no_more_members_are_heard_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.discovery._shared_directory.MEMBERS_MAX", 2)
    env = shared(SimDisk(random.Random(1)))
    endpoint = SharedDirectory("/shared", "lan")
    listener, *members = [await endpoint.open(env) for _ in range(5)]
    for number in range(2):
        for member in members:
            await member.broadcast(b"%d" % number)
    heard = [await came(listener, 1.0) for _ in range(3)]
    assert heard == [b"1", b"1", None]


async def test_a_directory_that_is_full_or_gone_is_said_and_a_later_call_succeeds() -> None:
    disk = SimDisk(random.Random(1))
    env = shared(disk)
    channel = await SharedDirectory("/shared", "lan").open(env)
    disk.capacity_bytes = 0
    with pytest.raises(BrokenError, match=r"the directory /shared/lan can't be used: "):
        await channel.broadcast(b"hello")
    disk.capacity_bytes = 1_000_000
    await channel.broadcast(b"hello")


@pytest.mark.real
@pytest.mark.parametrize("junk", ["directory", "pipe", "socket", "loop", "nowhere"])
async def test_junk_with_the_name_of_a_member_hides_no_member(junk: str, tmp_path: Path) -> None:
    endpoint = SharedDirectory(tmp_path, "lan")
    listener, sender = await endpoint.open(real_env()), await endpoint.open(real_env())
    name = tmp_path / "lan" / ("0" * 32)
    with socket.socket(socket.AF_UNIX) as one:
        if junk == "directory":
            name.mkdir()
        elif junk == "pipe":
            os.mkfifo(name)
        elif junk == "socket":
            # A path that is short enough for a socket, wherever the directory is.
            with contextlib.chdir(name.parent):
                one.bind(name.name)
        else:
            name.symlink_to(name if junk == "loop" else tmp_path / "nowhere")
    await sender.broadcast(b"hello")
    assert await came(listener, PATIENCE_S) == b"hello"
    late = await endpoint.open(real_env())
    await sender.broadcast(b"again")
    assert await came(late, PATIENCE_S) == b"again"


@pytest.mark.real
async def test_a_real_directory_that_is_gone_or_read_only_is_said(tmp_path: Path) -> None:
    endpoint = SharedDirectory(tmp_path / "shared", "lan")
    channel = await endpoint.open(real_env())
    (tmp_path / "shared" / "lan").rmdir()
    with pytest.raises(BrokenError, match="No such file or directory"):
        await channel.broadcast(b"hello")
    with pytest.raises(BrokenError, match="No such file or directory"):
        await channel.receive()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BrokenError, match="can't be used"):
        await SharedDirectory(tmp_path / "file", "lan").open(real_env())


@pytest.mark.parametrize("channel", ["", "a/b", ".", "..", ".hidden", "a\nb", "a" * 129, 5, None])
def test_a_channel_has_a_name_that_a_directory_can_have(channel: str) -> None:
    with pytest.raises(SettingsError, match="channel="):
        SharedDirectory("/shared", channel)


@pytest.mark.parametrize("path", ["", b"/shared", 5, None])
def test_a_shared_directory_has_a_path(path: str) -> None:
    with pytest.raises(SettingsError, match="path="):
        SharedDirectory(path, "lan")


def test_path_and_channel_can_not_be_left_out() -> None:
    with pytest.raises(TypeError, match="channel"):
        SharedDirectory("/shared")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="path"):
        SharedDirectory(channel="lan")  # type: ignore[call-arg]
