"""The descriptions of the queues of further nodes, for peers that have asked for more than one hop.

A peer is told what this node knows of others: each queue once, by the way that this node would send a message.  The
peer leaves out those to which it is on the way itself.  What has been told is compared with what is: so a change that
is seen twice, or late, tells nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.errors import ClosedError, JournalBrokenError, LocalProtocolError
from meshq.wire import Binding, Frame, FrameType, LinkOpening

#: The most links between a node and the queues that it hears of.
HOPS_MAX: Final = 16
#: What a description takes beside its texts.
_BYTES_MAX: Final = 128


#: What was described, and how, by number.
_Described = dict[int, tuple[RemoteBinding, bytes]]


class _Asking(NamedTuple):
    """The cluster and the distance that a link has asked for, and the descriptions that were sent, by address."""

    cluster: str
    hops: int
    told: dict[str, _Described]


class FurtherQueues:
    """Tells the links of one session of the queues of further nodes."""

    def __init__(self, definitions: Definitions, put: Callable[[Frame], object]) -> None:
        self._definitions = definitions
        self._put = put
        self._asking: dict[int, _Asking] = {}
        self._changed: dict[str, None] = {}

    def open(self, channel: int, opening: LinkOpening) -> None:
        """Tell a link of all queues with the next ``flush``, if it has asked for more than its peer's own."""
        self.close(channel)
        if opening.hops > 1:
            self._asking[channel] = _Asking(opening.cluster, min(opening.hops, HOPS_MAX), {})
            self._changed.update(dict.fromkeys(self._definitions.router.remote_addresses))

    def close(self, channel: int) -> None:
        """Tell a link nothing more."""
        self._asking.pop(channel, None)

    def changed(self, address: str) -> bool:
        """Note a change of queues on an address.  Return True if a link has asked for such queues."""
        if self._asking:
            self._changed[address] = None
        return bool(self._asking)

    def flush(self) -> list[int]:
        """Describe the changed queues.  Return the numbers that are not durable yet.

        Queues with such numbers are described with the next flush.
        """
        unsure: dict[int, None] = {}
        changed, self._changed = self._changed, {}
        for address in changed:
            for channel, asking in self._asking.items():
                told = asking.told.pop(address, {})
                found = self._of(address, asking, told, unsure)
                for number in told.keys() - found.keys():
                    self._say(channel, Binding(queue=number, gone=True).encode())
                for number, (_, header) in found.items():
                    if number not in told or told[number][1] != header:
                        self._say(channel, header)
                if found:
                    asking.told[address] = found
        for number in unsure:
            place = self._definitions.router.relays.place_of(number)
            if place is not None:
                self._changed[place.address] = None
        return list(unsure)

    def _say(self, channel: int, header: bytes) -> None:
        self._put(Frame(FrameType.BINDING, channel=channel, header=header))

    def _of(self, address: str, asking: _Asking, told: _Described, unsure: dict[int, None]) -> _Described:
        """Describe the queues of an address by their numbers here; a queue that is as it was told is told once only."""
        found: _Described = {}
        relays = self._definitions.router.relays
        for binding in self._definitions.router.relayed(address, asking.cluster):
            if not binding.path or binding.distance >= asking.hops:
                continue
            number = relays.number_of(binding.forward.number, binding.number)
            if number in told and told[number][0] is binding:
                found[number] = told[number]
                continue
            try:
                number = self._definitions.relay(binding)
            except (ClosedError, JournalBrokenError):
                # The node ends and says why.
                continue
            if not self._definitions.numbers.is_sure(number):
                unsure[number] = None
                continue
            header = _described(number, binding)
            if header is not None:
                found[number] = binding, header
        return found


def _described(number: int, binding: RemoteBinding) -> bytes | None:
    """Describe a queue; None: its names and the way to it are longer than a description."""
    own = binding.filter.text if binding.filter is not None else ""
    features = " ".join(binding.features)
    texts = [binding.name, binding.address, own, binding.node_name, *binding.path, features]
    filters = [filter.text for filter in binding.filters]
    taken = sum(len(text.encode()) + 3 for text in (*texts, *filters)) + _BYTES_MAX
    fits = taken <= limits.HEADER_BYTES_MAX
    header = Binding(
        queue=number,
        name=binding.name,
        address=binding.address,
        routing=binding.routing,
        consumers=binding.consumers,
        # More than a header holds: whatever comes may be wanted.
        filters=tuple(filters) if fits else (),
        filter=own,
        durable=binding.durable,
        precise=binding.precise and (fits or not filters),
        path=binding.path,
        node_name=binding.node_name,
        state=binding.gone,
        features=features,
    )
    try:
        return header.encode()
    except LocalProtocolError:
        return None
