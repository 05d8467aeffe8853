"""The bugs that are planted to see whether the simulation finds them.

Each is a change of a line or two in the product: a piece of text that stands there once, and what takes its place.
``checkers``: who has to find it, any of them.  A bug that is ``required`` is looked for in CI.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Bug:
    """One planted bug."""

    name: str
    #: Below the package, with slashes.
    file: str
    old: str
    new: str
    checkers: tuple[str, ...]
    required: bool = False
    #: It is looked for on the mesh, not with a single broker.
    mesh: bool = False


BUGS: Final = (
    Bug(
        name="acknowledge without sync",
        file="broker/placing/_ledger.py",
        old="        if log is None or (not self._entries and position <= log.durable):\n",
        new="        if log is None or (not self._entries and position <= log.last):\n",
        checkers=("Q1",),
        required=True,
    ),
    Bug(
        name="ignore a sync error",
        file="store/_writer.py",
        old="        seconds = self._file.sync()\n",
        new="        try:\n            seconds = self._file.sync()\n        except OSError:\n            seconds = 0\n",
        checkers=("Q1",),
        required=True,
    ),
    Bug(
        name="truncate at the first bad batch",
        file="store/_scan_format.py",
        old="    later = _later_header(data, end, keys)\n",
        new="    later = None\n",
        checkers=("Q1",),
        required=True,
    ),
    Bug(
        name="skip the checksum",
        file="store/_scan_format.py",
        old="    if not open_batch(keys, view, batch):\n",
        new="    if open_batch(keys, view, batch) is None:\n",
        checkers=("Q1", "Q2"),
        required=True,
    ),
    Bug(
        name="forget the duplicate cache at restart",
        file="broker/_recovery.py",
        old="                gone += address.duplicates.add(chunk)\n",
        new="                gone += [chunk.record] if chunk.record else []\n",
        checkers=("Q4",),
        required=True,
    ),
    Bug(
        name="deliver before durable",
        file="broker/placing/_ledger.py",
        old="            self._entries.append((position, views, then))\n",
        new="            self._release_views(views)\n            self._entries.append((position, (), then))\n",
        checkers=("Q4", "Q5", "Q7"),
        required=True,
    ),
    Bug(
        name="reuse a sequence number",
        file="broker/_recovery.py",
        old="            queue.last = max(given, *delivered.values(), 0)\n",
        new="            queue.last = 0\n",
        checkers=("Q7",),
        required=True,
    ),
    Bug(
        name="confirm a duplicate before its original is durable",
        file="broker/placing/_placing.py",
        old="        self._ledger.release_after(log.last if log is not None else 0, (), then)\n",
        new="        then()\n",
        checkers=("Q1", "Q7"),
    ),
    Bug(
        name="answer an acknowledgement before it is durable",
        file="broker/session/_session.py",
        old="        self.core.ledger.when_all_is_durable(lambda: self._answer(call, values))\n",
        new="        self._answer(call, values)\n",
        checkers=("Q6",),
    ),
    Bug(
        name="store again what was resent",
        file="broker/session/_producing.py",
        old="        if frame.first > mark:\n",
        new="        if frame.first:\n",
        checkers=("Q5",),
    ),
    Bug(
        name="leave the producers out of the checkpoint",
        file="broker/_core.py",
        old="        soft = [(PRODUCERS, payload) for payload in self.producers.checkpoint()]\n",
        new="        soft: list[tuple[int, bytes]] = []\n",
        checkers=("Q5", "Q15"),
    ),
    Bug(
        name="let the duplicate ids of a settled run die with it",
        file="broker/leaving/_settling.py",
        old="        if not run.has_ids:\n",
        new="        if run.position:\n",
        checkers=("Q4",),
    ),
    Bug(
        name="forget at restart what was settled",
        file="broker/_recovery.py",
        old="                view.states[row.start : row.stop : row.step] = GONE_ROWS[: len(settled)]\n",
        new="                view.states[row.start : row.stop : row.step] = bytes(len(settled))\n",
        checkers=("Q6",),
    ),
    Bug(
        name="keep what a dead session held",
        file="broker/leaving/_returning.py",
        old="            if handed is None or tag + span.rows <= handed:\n",
        new="            if handed is None:\n                continue\n            if tag + span.rows <= handed:\n",
        checkers=("Q1", "Q14", "InvariantError"),
    ),
    Bug(
        name="forget at restart that a dead letter left its queue",
        file="broker/_recovery.py",
        old="        self._settle(record.settled, position)\n",
        new="",
        checkers=("Q4", "Q5"),
    ),
    Bug(
        name="grant what waits with the run that it is in",
        file="broker/queue/_dispatch_machine.py",
        old="        view.states.count(READY) != rows\n",
        new="        view.live != rows\n",
        checkers=("Q5", "Q8", "InvariantError"),
    ),
    Bug(
        name="serve what came back last",
        file="broker/queue/_level.py",
        old="        while self.returned:\n",
        new="        while self.returned and self.fresh is None:\n",
        checkers=("Q7",),
    ),
    Bug(
        name="never take back the credit of a session that ended",
        file="broker/placing/_memory.py",
        old="        self._reserved -= max(0, sender.granted_bytes - sender.sent_bytes)\n",
        new="",
        checkers=("Q14",),
    ),
    Bug(
        name="lose a frame when a session is resumed",
        file="wire/_numbering.py",
        old="        return iter(tuple(self._kept))\n",
        new="        return iter(tuple(self._kept)[1:])\n",
        checkers=("Q14", "RemoteProtocolError"),
    ),
    Bug(
        name="switch manifests without syncing the directory",
        file="store/_pair.py",
        old="        self._disk.replace(temporary, path)\n        self._disk.sync_directory(self._directory)\n",
        new="        self._disk.replace(temporary, path)\n",
        checkers=("Q1",),
    ),
    Bug(
        name="compact without syncing the copy",
        file="store/_sealed.py",
        old="        file.sync()\n    finally:\n",
        new="    finally:\n",
        checkers=("Q1",),
    ),
    Bug(
        name="place a large message before its body is synced",
        file="store/_large.py",
        old="        if durable:\n            self._file.sync()\n",
        new="",
        checkers=("Q1",),
        required=True,
    ),
    Bug(
        name="remove a large body while a dead letter needs it",
        file="broker/_core.py",
        old="        body.refs -= 1\n",
        new="        body.refs = 0\n",
        checkers=("Q1", "Q14"),
        required=True,
    ),
    Bug(
        name="write a commit as if its records were anybody's",
        file="store/_commit.py",
        old=" and not self._together:\n",
        new=":\n",
        checkers=("Q3", "Q6"),
    ),
    Bug(
        name="commit what is rolled back",
        file="broker/transacting/_transacting.py",
        old="            self._core.transactions.roll_back(transaction)\n",
        new="            self._core.transactions.commit(transaction)\n",
        checkers=("Q3", "Q6"),
        required=True,
    ),
    Bug(
        name="prepare a transaction without what it sends",
        file="broker/transacting/_two_phase.py",
        old="        waiting = [work for work in transaction.work if work.run.durable]\n",
        new="        waiting = [work for work in transaction.work if not work.run.durable]\n",
        checkers=("Q1",),
        required=True,
    ),
    Bug(
        name="forget at restart what a prepared transaction holds",
        file="broker/transacting/_restoring.py",
        old=".extend(self._held(row, find(row.position, row.queue), position))\n",
        new="\n",
        checkers=("Q6",),
    ),
    Bug(
        name="leave a decided transaction in the journal",
        file="broker/transacting/_two_phase.py",
        old="        kills = [position for position in prepared.positions if position]\n",
        new="        kills: list[int] = []\n",
        checkers=("Q1", "Q14"),
        required=True,
    ),
    Bug(
        name="keep a large body that nobody needs",
        file="broker/_core.py",
        old="            self.bodies.remove(body)\n",
        new="            return\n",
        checkers=("Q14", "Q16"),
    ),
    Bug(
        name="read back another page",
        file="node/_paging.py",
        old="            pages = [page for _, page in spilled]\n",
        new="            pages = [page for _, page in spilled[1:] + spilled[:1]]\n",
        checkers=("Q2", "InvariantError"),
    ),
    Bug(
        name="read back another run of the journal",
        file="node/_paging.py",
        old="            record = records.get((run.origin or run).position)\n",
        new="            record = records.get(max(records, default=0))\n",
        checkers=("Q2", "Q4", "Q5", "InvariantError"),
    ),
    Bug(
        name="tell nobody that a page is back",
        file="broker/paging/_pager.py",
        old="                    self._here(queue, view)\n",
        new="                    arrived(queue, view)\n",
        checkers=("Q14",),
    ),
    Bug(
        name="pass over what is on the disk",
        file="broker/queue/_level.py",
        old="                    return None\n                return view, start, stop, True\n",
        new="                    view_or_none = view.next\n                    continue\n"
        "                return view, start, stop, True\n",
        checkers=("Q7", "Q14"),
    ),
    Bug(
        name="believe an index whatever its tag is",
        file="store/_index_format.py",
        old="        return None\n    return bytes(view[HEAD_BYTES:-TAG_BYTES])\n",
        new="        pass\n    return bytes(view[HEAD_BYTES:-TAG_BYTES])\n",
        checkers=("Q1", "Q3", "Q4", "Q5", "Q7", "Q8"),
    ),
    Bug(
        name="leave duplicate ids on the disk at a start",
        file="broker/records/_excerpts.py",
        old=" and not has_ids(table)",
        new=" and has_ids(table) is not None",
        checkers=("Q4",),
    ),
)
