"""In which line a key of a TOML file stands."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from meshq.config._lines_format import KeyLines, Path, shown
from meshq.config._units_format import BYTES, SECONDS, in_units, units_of

TEXT = '''\
a = 1  # [not.a.table]
"b c" = """
[neither]
x = 2 \\"""
"""""
d.e = [ { f = 1 }, # ]
  [ 1,
    2 ] ]
[g."h.i"]
j = '\\'
k = { l = { m = 1979-05-27 07:32:00 } , n = "}" }
[[o]]
p = 1
[[o]]
p = "]" # =
[o.q]
r = true
'''


def paths(value: object, path: Path = ()) -> list[Path]:
    """The path of everything in a table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for part, item in items for found in paths(item, (*path, part)))]


def test_every_key_has_its_line() -> None:
    lines = KeyLines(TEXT)
    expected = {
        ("a",): 1,
        ("b c",): 2,
        ("d",): 6,
        ("d", "e"): 6,
        ("d", "e", 0, "f"): 6,
        ("d", "e", 1): 7,
        ("d", "e", 1, 1): 8,
        ("g", "h.i"): 9,
        ("g", "h.i", "j"): 10,
        ("g", "h.i", "k", "l", "m"): 11,
        ("g", "h.i", "k", "n"): 11,
        ("o", 0): 12,
        ("o", 0, "p"): 13,
        ("o", 1): 14,
        ("o", 1, "p"): 15,
        ("o", 1, "q"): 16,
        ("o", 1, "q", "r"): 17,
    }
    assert {path: lines.of(path) for path in expected} == expected
    assert all(path in lines._lines for path in paths(tomllib.loads(TEXT)) if path)
    assert lines.of(("o", 1, "unknown", 5)) == 14
    assert lines.of(("unknown",)) == 1


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=5)
VALUES = st.one_of(st.booleans(), st.integers(0, 99), NAMES)


def written(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", # ]}\n".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)} = {written(item)}" for name, item in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """A text in TOML."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(
    st.dictionaries(
        NAMES,
        st.recursive(VALUES, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3))),
        max_size=4,
    )
)
def test_whatever_the_other_reader_understands_is_found(table: dict[str, object]) -> None:
    text = "".join(f"\n# a line\n{quoted(name)}={written(value)}" for name, value in table.items())
    assert tomllib.loads(text) == table
    lines = KeyLines(text)
    starts = text.splitlines()
    for path in paths(table):
        if path:
            assert path in lines._lines
        if len(path) == 1:
            assert starts[lines.of(path) - 1].startswith(quoted(str(path[0])))


def test_a_path_is_shown_as_it_is_written() -> None:
    assert shown(("services", 0, "window")) == "services[0].window"
    assert shown(("address_settings", "orders.#", "page_size")) == 'address_settings."orders.#".page_size'
    assert shown(()) == ""


def test_durations_and_sizes_with_units_that_can_not_be_mistaken() -> None:
    assert in_units("5 s", SECONDS) == 5
    assert in_units("0.5min", SECONDS) == 30
    assert in_units("1 ms", SECONDS) == 0.001
    assert in_units("10 MiB", BYTES) == 10 * 2**20
    for text in ("10 MB", "10 M", "5", "s", "-1 s", "5  s", "5 S", "1e3 s", ""):
        assert in_units(text, SECONDS) is None
        assert in_units(text, BYTES) is None
    assert units_of("retry_interval") == SECONDS
    assert units_of("segment_bytes") == BYTES
    assert units_of("max_delivery_attempts") is None
    assert units_of("duplicate_id_cache_size") is None
