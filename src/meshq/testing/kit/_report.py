"""The report of a simulated test: seed, nodes, queues, links that are cut, and the last events."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.testing.kit._settled_plan import NodeView


def report_of(nodes: Sequence[NodeView], cuts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines about the nodes of one cluster."""
    width = max(len("node"), *(len(node.name) for node in nodes)) + 2
    lines = [f"{'node':<{width}}{'state':<10}queues"]
    for node in nodes:
        queues = "; ".join(f"{name}: {view}" for name, view in node.queues.items()) or "-"
        lines.append(f"{node.name:<{width}}{node.state:<10}{queues}")
        lines += [
            f"{'':<{width + 10}}{link.waiting} messages for {name} ({link.state})"
            for name, link in node.links.items()
            if link.waiting
        ]
    if cuts:
        lines.append("cut: " + ", ".join(f"{source} -> {target}" for source, target in cuts))
    return lines
