"""The house grows no new knots: each counter finds what it counts, and today's figures may only fall."""

from __future__ import annotations

import pytest

from tests.tidy import house
from tests.tidy.sources import ROOT, Source

pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]


def planted(path: str, *lines: str) -> Source:
    """A file of the product with these lines."""
    return Source.of(f"src/meshq/{path}", "\n".join(lines) + "\n")


def test_no_figure_of_the_house_grows() -> None:
    grown = house.grown(house.figures(house.sources_of(ROOT)), house.allowed())
    assert not grown, "\n".join([*grown, "after a rename: python -m tests.tidy.house --write"])


def test_a_figure_that_grows_is_found_and_one_that_falls_is_fine() -> None:
    before = {"fields": {"broker.Core": 30}}
    assert house.grown({"fields": {"broker.Core": 30}}, before) == []
    assert house.grown({"fields": {"broker.Core": 29}, "hooks": {}}, before) == []
    assert house.grown({"fields": {"broker.Core": 31}}, before) == ["fields: broker.Core has 31, not 30"]
    assert house.grown({"fields": {"node.New": 21}}, before) == ["fields: node.New has 21, not few enough"]


def a_circle(files: int, room: str = "store") -> list[Source]:
    return [
        planted(
            f"{room}/_f{number}.py",
            "from typing import TYPE_CHECKING",
            "if TYPE_CHECKING:",
            f"    from meshq.{room.replace('/', '.')}._f{(number + 1) % files} import X",
        )
        for number in range(files)
    ]


def test_a_circle_of_files_is_found_also_for_the_type_checker() -> None:
    assert house.large_circles(a_circle(4)) == {}
    assert house.large_circles(a_circle(5)) == {"store": 5}
    assert house.large_circles(a_circle(8, "broker/queue")) == {}
    assert house.large_circles(a_circle(9, "broker/queue")) == {"broker.queue": 9}


def test_a_circle_through_what_a_package_passes_on_is_one() -> None:
    files = [
        planted("wire/__init__.py", "from meshq.wire._a import A", "from meshq.wire._b import B", "__all__ = ['A']"),
        planted("wire/_a.py", "def f():", "    from meshq.wire import B"),
        planted("wire/_b.py", "import meshq.wire._c"),
        planted("wire/_c.py", "from meshq.wire import A"),
    ]
    assert house.circles(house.graph_of(files)) == [["meshq.wire._a", "meshq.wire._b", "meshq.wire._c"]]


def test_a_folder_with_too_many_files_is_found() -> None:
    files = [planted(f"client/_f{number}.py", "") for number in range(26)]
    assert house.large_folders(files[:25]) == {}
    assert house.large_folders(files) == {"src/meshq/client": 26}


def test_a_class_with_too_many_fields_is_found_wherever_they_come_from() -> None:
    declared = [f"    a{number}: int" for number in range(12)]
    assigned = ["    def f(self):", *[f"        self.b{number} = 1" for number in range(9)]]
    body = ["class Whole:", "    SIZE: ClassVar[int] = 3", *declared, *assigned]
    assert house.many_fields([planted("node/_x.py", *body)]) == {"node.Whole": 21}
    assert house.many_fields([planted("node/_x.py", *body[:-1])]) == {}


def test_a_hook_that_is_assigned_from_outside_is_found() -> None:
    lines = [
        "def f(link):",
        "    link.on_gone = g",
        "    link.session.on_end = g",
        "    self.on_mine = g",
        "    link.x = 1",
    ]
    assert house.hooks([planted("client/_x.py", *lines)]) == {"client": 2}


def test_a_function_that_does_nothing_is_no_default() -> None:
    lines = [
        "def nothing() -> None:",
        "    '''Nothing.'''",
        "def something() -> int:",
        "    return 1",
        "class A:",
        "    on_a: object = nothing",
        "    on_b: object = field(default=lambda: None)",
        "    on_c: object = something",
        "def f(then=nothing, *, other=nothing): ...",
    ]
    assert house.null_defaults([planted("broker/_x.py", *lines)]) == {"broker": 4}


def test_an_implementation_is_inherited_over_one_step_only() -> None:
    lines = [
        "class Contract(ABC):",
        "    @abstractmethod",
        "    def f(self): ...",
        "class Base(Contract):",
        "    def f(self):",
        "        return 1",
        "class One(Base):",
        "    def g(self):",
        "        return 1",
        "class Two(One): ...",
        "class OneError(Exception):",
        "    def f(self):",
        "        return 1",
        "class TwoError(OneError):",
        "    def f(self):",
        "        return 1",
        "class ThreeError(TwoError): ...",
    ]
    assert house.deep_classes([planted("store/_x.py", *lines)]) == {"store.Two": 2}
