"""A user takes over another's producer: the id stands in every message, so a thief sends under it and claims others.

The thief raises the number of the owner's id, and claims more ids than a broker remembers, so that the owner's would be
forgotten.  Whatever the owner sends afterwards is stored once, before and after a crash, and what the thief has claimed
is bounded.  The frames are raw ones, over a socket: no client of meshq sends such.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from meshq import limits
from meshq.wire import FLAG_DURABLE, FLAG_RESENT
from tests.attacks.kit import Report, Server, main, serving
from tests.attacks.raw_session import RawSession, raw_session

#: More than a broker remembers of all users; and, for a short attack, more than it remembers of one.
CLAIMS: Final = limits.PRODUCERS_MAX + 4_000
FEW_CLAIMS: Final = limits.PRODUCERS_OF_USER_MAX + 2_000
#: Claims that are under way at a time.
AT_A_TIME: Final = 256
#: Of so many ids that were claimed, the broker is asked for one.
ASKED: Final = 8
PRODUCER: Final = b"0123456789abcdef"
STOLEN: Final = 1_000
SENT: Final = 10
USERS: Final = {"owner": "secret", "thief": "secret, too"}


async def _claim(thief: RawSession, count: int) -> int:
    """Send one message under each of so many ids; how many were stored."""
    for begin in range(0, count, AT_A_TIME):
        left = 0
        for number in range(begin, min(begin + AT_A_TIME, count)):
            channel = thief.channel()
            thief.ask_to_produce("thieves", number.to_bytes(16, "big"), channel)
            thief.put(channel, 1, b"x", flags=0)
            left = thief.ask_to_leave(channel)
        await thief.answer(left)
        thief.heard.clear()
        thief.answers.clear()
    return int((await thief.call("queue", name="thieves")).named["added"])


async def _known(thief: RawSession, count: int) -> int:
    """Of so many ids, those of which the broker knows what was sent; one of eight is asked for, the last ones first."""
    known = 0
    numbers = range(count - 1, -1, -ASKED)
    for begin in range(0, len(numbers), AT_A_TIME):
        asked, left = [], 0
        for number in numbers[begin : begin + AT_A_TIME]:
            channel = thief.channel()
            asked.append(thief.ask_to_produce("thieves", number.to_bytes(16, "big"), channel))
            left = thief.ask_to_leave(channel)
        await thief.answer(left)
        known += sum(thief.answers.pop(call).named.get("number") == 1 for call in asked)
        thief.answers.clear()
    return known * ASKED


async def _send(owner: RawSession, first: int, flags: int = 0) -> int:
    """Send the owner's next messages, as new ones or once more; what the broker takes for the last one's number."""
    channel = owner.channel()
    answer = await owner.answer(owner.ask_to_produce("q", PRODUCER, channel))
    for number in range(first, first + SENT):
        owner.put(channel, number, b"owner's %d" % number, flags=FLAG_DURABLE | flags)
    await owner.confirmed(channel, first + SENT - 1)
    return int(answer.named["number"])


async def attack(folder: Path, claims: int = CLAIMS) -> Report:
    """The owner sends, the thief steals and claims, the broker crashes, and the owner goes on."""
    report = Report(f"another user's producer, and {claims:,} more ids")
    server = Server(folder, users=USERS)
    async with serving(server) as sampler:
        async with (
            raw_session(server.port, "owner", USERS["owner"]) as owner,
            raw_session(server.port, "thief", USERS["thief"]) as thief,
        ):
            await _send(owner, 1)
            channel = thief.channel()
            thief.ask_to_produce("q", PRODUCER, channel)
            thief.put(channel, STOLEN, b"stolen")
            await thief.confirmed(channel, STOLEN)
            thief.heard.clear()
            report.exactly("messages that were sent under other ids", await _claim(thief, claims), claims)
            known = await _known(thief, claims)
            report.at_least("of the ids, those that the broker knows", known, claims // 4)
            report.at_most("and no more than", known, limits.PRODUCERS_OF_USER_MAX)
            report.exactly("the owner's highest number at the broker", await _send(owner, SENT + 1), SENT)
            report.exactly("refusals of the owner's next messages", len(owner.refusals()), 0)
        growth = sampler.rss_bytes - sampler.first.rss_bytes
        server.kill()
        server.start()
        async with raw_session(server.port, "owner", USERS["owner"]) as owner:
            # What was stored is sent once more, and what follows looks as if it were.
            await _send(owner, SENT + 1, FLAG_RESENT)
            await _send(owner, 2 * SENT + 1, FLAG_RESENT)
            report.exactly("refusals after a crash", len(owner.refusals()), 0)
            channel, _ = await owner.consume("q", window=100_000)
            await owner.until(lambda: b"owner's %d" % (3 * SENT) in owner.bodies(channel))
            bodies = owner.bodies(channel)
    report.exactly("messages of the thief under the owner's id", bodies.count(b"stolen"), 1)
    mine = [body for body in bodies if body.startswith(b"owner's")]
    report.exactly("messages of the owner that are stored", len(mine), 3 * SENT)
    report.exactly("different ones", len(set(mine)), 3 * SENT)
    report.at_most("MiB by which the broker has grown before the crash", growth >> 20, 256)
    return report


if __name__ == "__main__":
    main(attack)
