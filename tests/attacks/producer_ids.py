"""A user takes over another's producer: the id stands in every message, so a thief sends under it and claims others.

The thief raises the number of the owner's id, and claims more ids than a broker remembers, so that the owner's would be
forgotten.  Whatever the owner sends afterwards is stored once, before and after a crash, and what the thief has claimed
is bounded.  The frames are raw ones: no client of meshq sends such.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from meshq import limits
from meshq.wire import FLAG_RESENT
from tests.attacks.kit import Report, main
from tests.broker.kit import PRODUCER, RawClient
from tests.broker.test_producers_of_users import as_user, house_of, restarted

#: More than a broker remembers of all users.
CLAIMS: Final = limits.PRODUCERS_MAX + 4_000
STOLEN: Final = 1_000
SENT: Final = 10


def claim(thief: RawClient, count: int) -> None:
    """Send one message under each of so many ids."""
    for number in range(count):
        channel = thief.produce(producer=number.to_bytes(16, "big"))
        thief.put(channel, b"x", durable=False)
        thief.leave(channel)
        thief.frames.clear()


def numbered(owner: RawClient, first: int, flags: int = 0) -> None:
    """Send the owner's next messages, as new ones or once more."""
    channel = owner.produce()
    for number in range(first, first + SENT):
        owner.put(channel, b"owner's %d" % number, first=number, flags=flags)


async def attack(folder: Path) -> Report:
    """The owner sends, the thief steals and claims, the broker crashes, and the owner goes on."""
    report = Report(f"another user's producer, and {CLAIMS:,} more ids")
    house = house_of()
    owner, thief = as_user(house, "owner"), as_user(house, "thief")
    numbered(owner, 1)
    thief.put(thief.produce(), b"stolen", first=STOLEN)
    claim(thief, CLAIMS)
    await trio.lowlevel.checkpoint()
    marks = house.core.producers
    report.at_least("of the ids that were claimed, producers there", len(marks._users["thief"]), CLAIMS // 4)
    report.at_most("producers remembered of the thief", len(marks._users["thief"]), limits.PRODUCERS_OF_USER_MAX)
    report.at_most("producers remembered of all users", len(marks), limits.PRODUCERS_MAX)
    report.exactly("the owner's highest number at the broker", marks.get(PRODUCER, "owner") or 0, SENT)
    numbered(owner, SENT + 1)
    report.exactly("refusals of the owner's next messages", len(owner.refused()), 0)
    house.rest()
    house = restarted(house)
    owner = as_user(house, "owner")
    # What was stored is sent once more, and what follows looks as if it were.
    numbered(owner, SENT + 1, FLAG_RESENT)
    numbered(owner, 2 * SENT + 1, FLAG_RESENT)
    report.exactly("refusals after a crash", len(owner.refused()), 0)
    reader = as_user(house, "third")
    channel = reader.consume(window=100_000)
    house.rest()
    bodies = [body for body in reader.bodies(channel) if body.startswith(b"owner's")]
    report.exactly("messages of the owner that are stored", len(bodies), 3 * SENT)
    report.exactly("different ones", len(set(bodies)), 3 * SENT)
    return report


if __name__ == "__main__":
    main(attack)
