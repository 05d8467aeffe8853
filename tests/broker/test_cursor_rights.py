"""Whose a cursor is: who may take it, read by it, acknowledge and delete it."""

from __future__ import annotations

import attrs

from tests.broker.test_access import client_of, house_with, outcome, with_a_cursor


def test_a_cursor_is_its_users_and_that_of_who_manages_the_address() -> None:
    house = house_with("taped")
    fence = with_a_cursor(house)
    boss = client_of(house, "boss")
    assert (boss.call("cursors") or {}).get("name0") == "c"
    assert (client_of(house, "reader").call("cursors") or {}).get("name0") == "c"
    assert client_of(house, "looker").call("cursors") == {"more": False}
    for user, queue in (("nobody", "taped"), ("nobody", "none"), ("writer", "taped")):
        client = client_of(house, user)
        for operation, arguments in (("delete_cursor", {"queue": queue, "name": "c"}), ("cursors", {"queue": queue})):
            client.call(operation, **arguments)
            assert f"at '{queue}'" in outcome(client)
    # Whoever may consume reads by the cursor, and browses nothing else.
    reader = client_of(house, "reader")
    reader.consume("taped", browse=True, lo=1, cursor="c", fence=fence)
    assert outcome(reader) == ""
    reader.consume("taped", browse=True, lo=1)
    assert "'browse'" in outcome(reader)
    house.queue("taped").roster.cursor.facts = attrs.evolve(  # type: ignore[union-attr]
        house.queue("taped").roster.cursor.facts,  # type: ignore[union-attr]
        user="somebody",
    )
    reader.consume("taped", browse=True, lo=1, cursor="c", fence=fence)
    assert "'manage'" in outcome(reader)
    for operation, more in (
        ("open_cursor", {"token": "b", "lease_ms": 1_000}),
        ("renew_cursor", {"fence": fence}),
        ("pin_cursor", {"fence": fence, "number": 1}),
        ("ack_cursor", {"fence": fence, "number": 1}),
        ("release_cursor", {"fence": fence}),
        ("cursor_lag", {}),
        ("delete_cursor", {}),
    ):
        reader.call(operation, queue="taped", name="c", **more)
        assert "'manage'" in outcome(reader), operation
    assert house.queue("taped").roster.cursor.facts.fence == fence  # type: ignore[union-attr]
    boss.call("renew_cursor", queue="taped", name="c", fence=fence)
    assert outcome(boss) == ""
    boss.call("delete_cursor", queue="taped", name="c")
    assert outcome(boss) == "" and house.queue("taped").roster.cursor is None
