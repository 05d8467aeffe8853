"""The conformance suite for a journal of plain records, by the promises of ``meshq.Journal``."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import trio

from meshq.concurrency import first_error
from meshq.errors import BusyError, ClosedError, NotFoundError, SettingsError, kind_of
from meshq.testing.conformance._assertions import NonconformanceError, expect, expect_equal, expect_raises
from meshq.testing.conformance._cancelling import CHECKPOINTS_MAX, is_cancelled

#: Payloads that are easily mistaken for something else: nothing, zeros, every byte, more than a page.
PAYLOADS: Final = (b"", b"\0" * 600, bytes(range(256)), b"large" * 4_000)
#: Tasks that append at once, and the records of each.
TASKS: Final = 8
EACH: Final = 5
#: Bytes of a payload that an error shows.
SHOWN_BYTES_MAX: Final = 40
#: What ``check_journal`` is given.
MAKES: Final = "a function that returns an empty JournalPlace"
#: Positions that no record has.
NOWHERE: Final = (0, -1, 10**9)

#: The records of a journal: position and payload, in the order in which a replay gives them.
Found = list[tuple[int, bytes]]


class StoredRecord(Protocol):
    """A record as a replay gives it."""

    @property
    def position(self) -> int:
        """The position that ``append`` has returned."""

    @property
    def payload(self) -> bytes:
        """The bytes that were appended."""


class PlainJournal(Protocol):
    """A journal of plain records: the calls of ``meshq.Journal`` that ``check_journal`` examines."""

    async def append(self, payload: bytes, /) -> int:
        """Write one record, and return its position; on return it survives a power failure.

        Checkpoint: always.  Cancellation: the record is there whole or not at all.
        """

    async def append_many(self, payloads: Sequence[bytes], /) -> Sequence[int]:
        """Write records in order; on return all of them survive a power failure.

        Checkpoint: when there are any.  Cancellation: the first ones are there.
        """

    async def delete(self, position: int, /) -> None:
        """Delete a record; on return the deletion survives a power failure.

        Checkpoint: always.  Cancellation: done or not done.
        """

    def replay(self) -> AsyncIterator[StoredRecord]:
        """Iterate over the records that are not deleted, in order, as they are at this call."""


class JournalPlace(ABC):
    """A place where one journal after the other is opened, each with the records of those before it."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[PlainJournal]:
        """Return the block in which a journal is open here."""

    @abstractmethod
    def crashed(self) -> JournalPlace:
        """Return a copy of this place after a power failure at this moment.

        This place, and a journal that is open here, go on as if nothing was asked.
        """


JournalCheck = Callable[[Callable[[], JournalPlace]], Awaitable[None]]


async def check_journal(make: Callable[[], JournalPlace]) -> None:
    """Check that a journal keeps the promises of ``meshq.Journal`` for ``append``, ``delete`` and ``replay``.

    ``make`` is called once for each check of ``JOURNAL_CHECKS``, and returns an empty place.  If chance decides what a
    crash leaves, run the suite with several seeds.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the journal breaks a promise, or raises an error that the contract does not name.
        SettingsError: ``make`` is no such function.
    """
    for check in JOURNAL_CHECKS:
        try:
            await check(make)
        except Exception as error:
            first = first_error(error)
            if isinstance(first, NonconformanceError) or (isinstance(first, SettingsError) and first.setting == "make"):
                raise first from first.__cause__
            sentence = str(getattr(check, "__name__", check)).strip("_").replace("_", " ")
            raise NonconformanceError(f"{sentence}: {first!r} was raised") from first


def _expect_records(found: Found, wanted: Found, promise: str) -> None:
    """The contract says that these are the records; the error has the first one that is another."""
    for one, other in itertools.zip_longest(found, wanted):
        if one != other:
            raise NonconformanceError(f"{promise}: expected {_shown(other)}, found {_shown(one)}")


def _shown(record: tuple[int, bytes] | None) -> str:
    if record is None:
        return "no further record"
    position, payload = record
    text = repr(payload) if len(payload) <= SHOWN_BYTES_MAX else f"{payload[:SHOWN_BYTES_MAX]!r}..."
    return f"record {position} with {len(payload)} bytes: {text}"


async def _records(journal: PlainJournal) -> Found:
    return [(int(record.position), bytes(record.payload)) async for record in journal.replay()]


def _block(place: JournalPlace) -> AbstractAsyncContextManager[PlainJournal]:
    """Return the block in which a journal is open at a place."""
    block = place.open()
    if not isinstance(block, AbstractAsyncContextManager):
        raise SettingsError("make", place, f"{MAKES}, whose open() returns a block, and not {kind_of(block)}")
    return block


async def _reopened(place: JournalPlace) -> Found:
    async with _block(place) as journal:
        return await _records(journal)


async def _after_a_crash(place: JournalPlace) -> Found:
    return await _reopened(place.crashed())


def _new_place(make: Callable[[], JournalPlace]) -> JournalPlace:
    """Return a new place; raise ``SettingsError`` if ``make`` returns none."""
    place = make() if callable(make) else None
    if not isinstance(place, JournalPlace):
        raise SettingsError("make", make, MAKES if place is None else f"{MAKES}, and not {kind_of(place)}")
    return place


@asynccontextmanager
async def _first_opened(make: Callable[[], JournalPlace]) -> AsyncIterator[tuple[JournalPlace, PlainJournal]]:
    """Open a new place; it must be empty, or all that is found later says nothing."""
    place = _new_place(make)
    async with _block(place) as journal:
        if await _records(journal):
            raise SettingsError("make", make, f"{MAKES}, another one at each call")
        yield place, journal


async def _a_new_journal_is_empty(make: Callable[[], JournalPlace]) -> None:
    place = _new_place(make)
    _expect_records(await _reopened(place), [], "a new journal has no records")
    _expect_records(await _reopened(place), [], "a journal that was opened and closed has no records")


async def _records_come_in_order_and_as_they_were(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        positions = [await journal.append(payload) for payload in PAYLOADS]
        expect_equal(list(await journal.append_many([])), [], "append_many of nothing returns nothing")
        positions += await journal.append_many(PAYLOADS)
        expect(positions == sorted(set(positions)), "positions rise")
        wanted = list(zip(positions, PAYLOADS * 2, strict=True))
        _expect_records(await _records(journal), wanted, "a replay has all records, in order and as they were")
        _expect_records(await _records(journal), wanted, "a second replay has the same records")
    _expect_records(await _reopened(place), wanted, "a journal that is opened again has all records")


async def _a_deleted_record_is_gone(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        first, second, third = await journal.append_many([b"1", b"2", b"3"])
        await journal.delete(second)
        wanted = [(first, b"1"), (third, b"3")]
        _expect_records(await _records(journal), wanted, "a deleted record is not replayed")
        for missing in (second, *NOWHERE):
            with expect_raises(NotFoundError, "a record that is not there can't be deleted"):
                await journal.delete(missing)
    _expect_records(await _reopened(place), wanted, "a deleted record stays deleted when the journal is opened again")


async def _a_position_is_never_given_again(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        last = (await journal.append_many([b"1", b"2"]))[-1]
        await journal.delete(last)
        new = await journal.append(b"3")
        expect(new > last, "the position of a deleted record is not given again")
        await journal.delete(new)
    async with place.open() as journal:
        expect(await journal.append(b"4") > new, "positions go on rising when the journal is opened again")


async def _what_append_has_returned_survives_a_crash(make: Callable[[], JournalPlace]) -> None:
    wanted = []
    async with _first_opened(make) as (place, journal):
        for payload in PAYLOADS:
            wanted.append((await journal.append(payload), payload))
            _expect_records(await _after_a_crash(place), wanted, "a record is durable when append returns")
        wanted += zip(await journal.append_many(PAYLOADS), PAYLOADS, strict=True)
        _expect_records(await _after_a_crash(place), wanted, "records are durable when append_many returns")
        _expect_records(await _records(journal), wanted, "a journal goes on while a copy of its place is opened")


async def _what_delete_has_returned_survives_a_crash(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        left = list(zip(await journal.append_many(PAYLOADS), PAYLOADS, strict=True))
        while left:
            await journal.delete(left.pop(0)[0])
            _expect_records(await _after_a_crash(place), left, "a deletion is durable when delete returns")


async def _a_journal_goes_on_after_a_crash(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        wanted = [(await journal.append(b"1"), b"1")]
        crashed = place.crashed()
    async with crashed.open() as journal:
        wanted.append((await journal.append(b"2"), b"2"))
        expect(wanted[0][0] < wanted[1][0], "positions go on rising after a crash")
        _expect_records(await _records(journal), wanted, "a record that is appended after a crash is behind the others")
        _expect_records(await _after_a_crash(crashed), wanted, "a record survives the second crash as the first")
    _expect_records(await _reopened(crashed), wanted, "a journal that has recovered is closed and opened as any other")


async def _tasks_that_append_at_once_lose_nothing(make: Callable[[], JournalPlace]) -> None:
    confirmed: dict[int, bytes] = {}

    async def append(task: int) -> None:
        before = 0
        for number in range(EACH):
            payload = b"record %d of %d" % (number, task)
            position = await journal.append(payload)
            expect(position not in confirmed, "each record has a position of its own")
            expect(position > before, "the records of one task keep their order")
            confirmed[position], before = payload, position

    async with _first_opened(make) as (place, journal):
        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(append, task)
        wanted = sorted(confirmed.items())
        _expect_records(await _records(journal), wanted, "records of several tasks are all there, each at its position")
    _expect_records(
        await _reopened(place), wanted, "records of several tasks are there when the journal is opened again"
    )


async def _a_crash_while_records_are_written_leaves_whole_ones(make: Callable[[], JournalPlace]) -> None:
    given = [b"record %d " % number * 300 for number in range(EACH)]
    crashes: list[tuple[Found, JournalPlace]] = []
    confirmed: Found = []

    async def append(done: trio.Event) -> None:
        for payload in given:
            confirmed.append((await journal.append(payload), payload))
        done.set()

    async with _first_opened(make) as (place, journal), trio.open_nursery() as nursery:
        done = trio.Event()
        nursery.start_soon(append, done)
        while not done.is_set():
            crashes.append((list(confirmed), place.crashed()))
            await trio.lowlevel.checkpoint()
            if len(crashes) > CHECKPOINTS_MAX:
                # What writes in a thread is waited for.
                crashes.pop(-2)
                await trio.sleep(0.001)
    for before, crashed in crashes:
        found = await _reopened(crashed)
        _expect_records(found[: len(before)], before, "what was confirmed survives a crash while more is written")
        expect_equal([payload for _, payload in found], given[: len(found)], "a crash leaves whole records, in order")


async def _a_replay_has_the_records_of_its_call(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (_, journal):
        positions = await journal.append_many([b"1", b"2", b"3"])
        replay = journal.replay()
        await journal.append(b"4")
        await journal.delete(positions[1])
        found = [record.payload async for record in replay]
        expect_equal(found, [b"1", b"3"], "a replay leaves out what was deleted meanwhile, and what is newer")


async def _a_cancelled_append_is_whole_or_not_there(make: Callable[[], JournalPlace]) -> None:
    wanted = [b"before"]
    async with _first_opened(make) as (place, journal):
        await journal.append(b"before")
        for checkpoint in range(CHECKPOINTS_MAX):
            payload = b"cancelled at %d" % checkpoint
            cancelled = await is_cancelled(partial(journal.append, payload), checkpoint=checkpoint)
            # Whatever is under way is behind this one.
            await journal.append(b"after %d" % checkpoint)
            found = [payload for _, payload in await _records(journal)]
            may = [[payload], []] if cancelled else [[payload]]
            allowed = [[*wanted, *first, b"after %d" % checkpoint] for first in may]
            expect(found in allowed, "a record whose append was cancelled is there whole, or not at all")
            wanted = found
            if not cancelled:
                break
    expect_equal(
        [payload for _, payload in await _reopened(place)], wanted, "a journal with cancelled appends is whole"
    )


async def _wrong_values_change_nothing(make: Callable[[], JournalPlace]) -> None:
    wrong: list[Any] = ["text", None, 7]
    async with _first_opened(make) as (_, journal):
        for value in wrong:
            with expect_raises(SettingsError, "a payload is like bytes"):
                await journal.append(value)
            with expect_raises(SettingsError, "a payload is like bytes"):
                await journal.append_many([b"good", value])
        text: Any = "1"
        with expect_raises(SettingsError, "a position is a whole number"):
            await journal.delete(text)
        _expect_records(await _records(journal), [], "a call with a wrong value changes nothing")


async def _a_place_has_one_journal_at_a_time(make: Callable[[], JournalPlace]) -> None:
    async with _first_opened(make) as (place, journal):
        await journal.append(b"1")
        with expect_raises(BusyError, "a place has one open journal at a time"):
            async with place.open():
                pass
        await journal.append(b"2")
        expect_equal(len(await _records(journal)), 2, "a journal goes on when another one was refused")
    with expect_raises(ClosedError, "a closed journal takes no records"):
        await journal.append(b"3")
    expect_equal(len(await _reopened(place)), 2, "a place whose journal was closed can be opened again")


async def _a_place_can_be_opened_after_a_cancelled_opening(make: Callable[[], JournalPlace]) -> None:
    place = _new_place(make)

    async def use() -> None:
        async with _block(place):
            pass

    for checkpoint in range(CHECKPOINTS_MAX):
        cancelled = await is_cancelled(use, checkpoint=checkpoint)
        try:
            found = await _reopened(place)
        except BusyError as error:
            raise NonconformanceError("a place can be opened again after an opening that was cancelled") from error
        _expect_records(found, [], "a journal whose opening was cancelled has no records")
        if not cancelled:
            break


async def _a_journal_that_was_closed_writes_nothing_more(make: Callable[[], JournalPlace]) -> None:
    confirmed: Found = []
    begun = trio.Event()

    async def append(payload: bytes) -> None:
        begun.set()
        with suppress(ClosedError):
            confirmed.append((await journal.append(payload), payload))

    async with trio.open_nursery() as nursery:
        async with _first_opened(make) as (place, journal):
            for task in range(TASKS):
                nursery.start_soon(append, b"record of %d" % task)
            # Tasks begin in any order.
            await begun.wait()
        found = await _reopened(place)
    _expect_records(
        await _reopened(place), found, "an append that is under way writes nothing once its journal is closed"
    )
    for record in confirmed:
        expect(record in found, f"an append returns when its record is written: {_shown(record)} was not there")


#: The checks of the suite, in order.
JOURNAL_CHECKS: Final[tuple[JournalCheck, ...]] = (
    _a_new_journal_is_empty,
    _records_come_in_order_and_as_they_were,
    _a_deleted_record_is_gone,
    _a_position_is_never_given_again,
    _what_append_has_returned_survives_a_crash,
    _what_delete_has_returned_survives_a_crash,
    _a_journal_goes_on_after_a_crash,
    _tasks_that_append_at_once_lose_nothing,
    _a_crash_while_records_are_written_leaves_whole_ones,
    _a_replay_has_the_records_of_its_call,
    _a_cancelled_append_is_whole_or_not_there,
    _wrong_values_change_nothing,
    _a_place_has_one_journal_at_a_time,
    _a_place_can_be_opened_after_a_cancelled_opening,
    _a_journal_that_was_closed_writes_nothing_more,
)
