"""Where a message of a group goes in a cluster, and why one stays: said as it is then done."""

from __future__ import annotations

from meshq import AddressSettings, Message
from meshq.statistics import StuckMessages
from tests.cluster.kit import Mesh, mesh, until
from tests.cluster.test_clustered_groups import group_of, grouping, grouping_of, holders

STUCK_S = 1.0


async def route(nodes: Mesh, name: str, group: str | None) -> dict[str, tuple[str, str]]:
    """What a node says of each node's queue, by the names of these: whether it gets the message, and why."""
    names = {bytes(broker.node_id).hex(): one for one, broker in nodes.brokers.items()}
    async with nodes.client(name) as client:
        steps = (await client.explain_route("q", group=group)).steps
    return {names.get(step.node_id or "", name): (step.gets, step.why) for step in steps if step.kind != "divert"}


async def test_a_message_of_a_group_goes_where_it_is_said_to_go() -> None:
    async with grouping() as nodes, nodes.client("b") as there, there.consumer("q") as consumer:
        await nodes.joined(queue="q", consumers=1)
        group = group_of(nodes, "c")
        before = await route(nodes, "a", group)
        assert {name: gets for name, (gets, _) in before.items()} == {"a": "yes", "b": "no", "c": "no"}
        assert "until the nodes have agreed" in before["a"][1] and before["b"][1] == "its group goes elsewhere"
        async with nodes.client("a") as here:
            await here.send("q", Message(b"first", group=group))
            assert await consumer.receive(timeout=10)
            await until(lambda: holders(nodes, group) == ["b"])
            after = await route(nodes, "a", group)
            assert after["b"] == ("yes", "its group is consumed on that node")
            assert after["a"][0] == after["c"][0] == "no"
            carried = nodes.known("a").bridges()
            await here.send("q", Message(b"second", group=group))
            assert (await consumer.receive(timeout=10)) is not None
            assert sum(one.carried for one in nodes.known("a").bridges()) == sum(one.carried for one in carried) + 1
        assert (await route(nodes, "b", group))["b"] == ("yes", "its group is consumed on this node")
        # Without a group it is dealt as any other.
        assert "group" not in str(await route(nodes, "a", None))


async def test_a_node_without_the_queue_says_to_which_node_a_group_goes() -> None:
    none_made = {"#": AddressSettings(auto_create_queues=False)}
    async with mesh("abc", root="simulated", broker={"address_settings": none_made}) as nodes:
        await nodes.joined()
        for name in "bc":
            async with nodes.client(name) as client:
                await client.create_queue("q")
        await nodes.known("a").wait_for(queue="q", queues=2)
        said = await route(nodes, "a", "red")
        (chosen,) = [name for name, (gets, _) in said.items() if gets == "yes"]
        assert "this node has no queue" in said[chosen][1]
        async with nodes.client("a") as here:
            await here.send("q", Message(b"x", group="red"))

        async def ready(name: str) -> int:
            async with nodes.client(name) as client:
                return (await client.queue("q")).ready

        async def arrived() -> bool:
            return sum([await ready(name) for name in "bc"]) == 1

        await until(lambda: grouping_of(nodes, "a").settled)
        # It may be under way still.
        await until(arrived)
        counts = {name: await ready(name) for name in "bc"}
        assert counts == {name: int(name == chosen) for name in "bc"}


def stuck(nodes: Mesh, name: str) -> list[StuckMessages]:
    return [one for one in nodes.known(name).stuck() if one.queue == "q"]


async def test_a_group_whose_arbiter_is_away_is_stuck_and_names_it() -> None:
    settings = {"#": AddressSettings(redistribution_delay=0.0)}
    about = {"queues": ["q"], "address_settings": settings}
    async with mesh("abc", root="simulated", broker=about, cluster={"stuck_timeout": STUCK_S}) as nodes:
        await nodes.joined()
        ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
        fresh, own = group_of(nodes, "c"), group_of(nodes, "a")
        await until(lambda: all(grouping_of(nodes, name).arbiter.ready for name in "abc"))
        await nodes.kill("c")
        async with nodes.client("a") as here:
            async with here.consumer("q"):
                await here.send("q", Message(b"y", group=fresh))
                await until(lambda: bool(stuck(nodes, "a")))
                (found,) = stuck(nodes, "a")
                assert (found.cause, found.node_ids, found.messages) == ("group", (ids["c"],), 1)
                assert "is away" in found.why
            # What this node decides itself it gives, although the other one is away.
            async with here.consumer("q") as consumer:
                await here.send("q", Message(b"z", group=own))
                assert (await consumer.receive(timeout=10)) is not None
            await nodes.start("c")
            await nodes.joined()
            async with here.consumer("q"):
                await until(lambda: not stuck(nodes, "a"))


async def test_an_arbiter_that_has_not_heard_all_names_those() -> None:
    async with grouping() as nodes:
        ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
        part, group = grouping_of(nodes, "a"), group_of(nodes, "a")
        await until(lambda: part.arbiter.ready)
        assert part.keeps("q", group, "") is None
        part.arbiter.doubt()
        found = part.keeps("q", group, "")
        assert found is not None and found.name == "group"
        assert found.node_ids == tuple(sorted((ids["b"], ids["c"])))
        # Who is linked, and has the group, gets its messages.
        assert part.keeps("q", group, ids["b"]) is None
        await nodes.kill("b")
        await until(lambda: ids["b"] not in part.arbiter.linked)
        away = part.keeps("q", group, ids["b"])
        assert away is not None and away.node_ids == (ids["b"],) and "consumes" in away.why
