"""What a whole queue does with transactions in two phases: steps beside those of ``test_whole_queue``."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from meshq.wire import Envelope
from tests.broker.account import HERE, Account, Message, Reader
from tests.broker.kit import House, RawClient
from tests.broker.preparing import decide, prepare
from tests.broker.test_transactions import Tx

#: Prepared ones at a time.
PREPARED_MAX = 3


class PreparingRules:
    """The steps of transactions; whoever has them has the rest of the queue, too."""

    account: Account | None
    channels: dict[int, Reader]
    client: RawClient
    house: House
    hops: int | None
    made: int
    transactions = 0

    def draw_messages(
        self, messages: list[Any], durable: bool, now: int
    ) -> tuple[list[bytes], list[Envelope], list[Message]]:
        """Bodies, envelopes, and what the account says of them."""
        raise NotImplementedError

    def be_quiet(self) -> None:
        """What waits for the disk is done."""
        raise NotImplementedError

    def settle_down(self) -> None:
        """All is on disk, and the account agrees."""
        raise NotImplementedError

    def live(self, log: Any) -> None:
        """Another life begins."""
        raise NotImplementedError

    def draw_run(self, data: st.DataObject) -> Any:
        """A run to be sent."""
        raise NotImplementedError

    def _may_prepare(self) -> bool:
        account = self.account
        return (
            account is not None
            and len(account.prepared) < PREPARED_MAX
            and any(reader.tags for reader in self.channels.values())
        )

    def do_prepare(self, data: st.DataObject) -> bytes:
        """Some of what a consumer has is acknowledged, perhaps something is sent, and that is prepared."""
        assert self.account is not None
        channel = data.draw(st.sampled_from([one for one, reader in self.channels.items() if reader.tags]))
        reader = self.channels[channel]
        tags = data.draw(st.lists(st.sampled_from(sorted(reader.tags)), min_size=1, max_size=4, unique=True))
        self.transactions += 1
        tx, xid = Tx(self.client, number=self.transactions), b"x%d" % self.transactions
        sends: list[Message] = []
        if data.draw(st.booleans()):
            messages, durable = self.draw_run(data)
            bodies, envelopes, sends = self.draw_messages(messages, durable, 0)
            tx.send(HERE, *bodies, envelopes=envelopes, durable=durable)
        for tag in tags:
            tx.ack(channel, tag, tag)
        code = prepare(tx, xid)
        assert code == (0 if self.house.auto else -1)
        self.account.prepare(xid, reader, tags, sends)
        return xid

    def do_decide(self, xid: bytes, *, commit: bool) -> None:
        """Tell the broker; a rollback may wait for pages."""
        assert self.account is not None
        code = decide(self.client, "commit" if commit else "rollback", xid)
        assert code == 0 or (code == -1 and (not commit or not self.house.auto))
        self.account.decide(xid, commit=commit)

    def waiting(self) -> set[bytes]:
        """What the broker says is prepared."""
        return {one.xid for one in self.house.core.transactions.two_phase}

    @precondition(lambda self: self._may_prepare())
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        self.be_quiet()
        self.do_prepare(data)
        self.settle_down()

    @precondition(lambda self: self.account is not None and self.account.prepared)
    @rule(data=st.data(), commit=st.booleans())
    def decide(self, data: st.DataObject, commit: bool) -> None:
        assert self.account is not None
        self.be_quiet()
        self.hops = None
        self.do_decide(data.draw(st.sampled_from(sorted(self.account.prepared))), commit=commit)
        self.settle_down()
        assert self.waiting() == {*self.account.prepared}

    @precondition(lambda self: self._may_prepare() or (self.account is not None and self.account.prepared))
    @rule(data=st.data())
    def kill_around_a_decision(self, data: st.DataObject) -> None:
        """A prepare or a decision has begun, and the disk has some of it: that is all of it or nothing."""
        assert self.account is not None
        whats = ["prepare"] if self._may_prepare() else []
        what = data.draw(st.sampled_from([*whats, *(["commit", "rollback"] if self.account.prepared else [])]))
        self.be_quiet()
        before = self.account.copy()
        self.house.auto = False
        if what == "prepare":
            xid = self.do_prepare(data)
        else:
            xid = data.draw(st.sampled_from(sorted(before.prepared)))
            self.do_decide(xid, commit=what == "commit")
        log = self.house.log
        self.live(log.after_crash(data.draw(st.sampled_from(log.cuts()))))
        if (xid in self.waiting()) is not (what == "prepare"):
            self.account = before
        elif what == "rollback":
            # It was let go, and nobody had it back yet.
            self.account = before
            del before.prepared[xid]
        self.account.restart()
        assert self.waiting() == {*self.account.prepared}
        self.settle_down()
