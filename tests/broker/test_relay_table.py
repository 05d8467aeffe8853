"""The numbers under which further nodes know the queues of others: each stands for one queue."""

from __future__ import annotations

from meshq.broker.catalog._relay_table import RelayPlace, RelayTable


def table() -> RelayTable:
    made = RelayTable()
    made.put(10, RelayPlace(1, 5, "q"))
    made.put(11, RelayPlace(1, 6, "news"))
    made.put(12, RelayPlace(2, 5, "q"))
    return made


def test_a_number_stands_for_a_queue_at_a_node_and_is_found_by_either() -> None:
    made = table()
    assert [made.number_of(1, 5), made.number_of(1, 6), made.number_of(2, 5), made.number_of(2, 6)] == [10, 11, 12, 0]
    assert made.place_of(11) == RelayPlace(1, 6, "news")
    assert made.place_of(13) is None


def test_queues_are_told_by_the_way_to_them_and_only_those_of_the_address() -> None:
    made = table()
    assert made.places("q", [10, 11, 12, 13, 10]) == {1: (5,), 2: (5,)}
    assert made.places("other", [10, 11, 12]) == {}


def test_a_queue_that_is_gone_has_no_number_any_more_and_its_number_no_queue() -> None:
    made = table()
    made.drop(1, 5)
    made.drop(1, 5)
    made.drop(7, 7)
    assert (made.number_of(1, 5), made.place_of(10), made.places("q", [10])) == (0, None, {})


def test_what_a_snapshot_does_not_name_is_gone_and_other_nodes_keep_theirs() -> None:
    made = table()
    made.retain(1, {6})
    assert (made.place_of(10), made.place_of(11), made.place_of(12)) == (
        None,
        RelayPlace(1, 6, "news"),
        RelayPlace(2, 5, "q"),
    )


def test_queues_of_a_store_that_was_begun_anew_keep_the_numbers_that_further_nodes_know() -> None:
    made = table()
    # The numbers of the two queues have changed places, as far as the new store has them.
    made.renumber(1, {5: 6}.get)
    assert made.place_of(10) == RelayPlace(1, 6, "q")
    assert (made.number_of(1, 6), made.number_of(1, 5), made.place_of(11)) == (10, 0, None)
    made.renumber(2, lambda old: None)
    assert made.place_of(12) is None


def test_the_record_of_an_older_turn_that_goes_takes_no_number_that_a_newer_one_has() -> None:
    made = table()
    made.put(10, RelayPlace(1, 9, "q"))
    made.drop(1, 5)
    assert made.place_of(10) == RelayPlace(1, 9, "q")
