"""The arbiters of a few nodes, and the letters between them."""

from __future__ import annotations

from meshq.cluster.grouping._arbiter_machine import ArbiterMachine, Said, Sender, arbiter_of
from meshq.cluster.grouping._letter import kept, restored

ALL = frozenset("abc")


def name_of(arbiter: str, members: frozenset[str] = ALL, more: str = "", among: str = "") -> tuple[str, str]:
    """A name of which a node is the arbiter, and another one when that has gone."""
    names = (("q", f"group {number}{more}") for number in range(1_000))
    found = (name for name in names if arbiter_of(name, members) == arbiter)
    return next(name for name in found if not among or arbiter_of(name, members - {arbiter}) == among)


class Cluster:
    """The arbiters of some nodes, and their letters."""

    def __init__(self, nodes: str = "abc") -> None:
        self.nodes = {node: ArbiterMachine(node) for node in nodes}
        self.serials = dict.fromkeys(nodes, 0)
        for one in self.nodes.values():
            one.see(nodes)

    def say(
        self, sender: str, to: str, *said: Said, begins: bool | None = None, complete: bool = False, instance: str = "1"
    ) -> list[str]:
        """``begins``: None if one letter tells all."""
        begins = complete if begins is None else begins
        self.serials[sender] += 1
        letter = Sender(sender, instance, self.serials[sender])
        return self.nodes[to].hear(letter, self.nodes[sender].members, said, begins=begins, complete=complete)

    def introduce(self) -> None:
        for sender in self.nodes:
            for to in self.nodes:
                if sender != to:
                    self.say(sender, to, complete=True)


def restarted(before: ArbiterMachine, members: str = "abc") -> ArbiterMachine:
    """The next life of the arbiter ``a``, with all that it has kept."""
    anew = ArbiterMachine("a")
    for name, holder in before.pins.items():
        anew.restore(name, holder)
    for known, lives in restored(*kept(before.introduced())):
        anew.restore_introduced(known, lives)
    anew.see(members)
    return anew
