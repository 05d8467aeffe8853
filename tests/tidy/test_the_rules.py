"""Each rule finds what it forbids: a small bad example is planted for every one."""

from __future__ import annotations

import pytest

from tests.tidy import bans, imports, shapes, texts
from tests.tidy.sources import Source

MODULES = frozenset({"meshq.wire", "meshq.client", "meshq.store._journal", "meshq.errors", "meshq.broker._queue"})
WORLDLY = frozenset({"meshq.store._journal", "meshq.broker._queue", "meshq.client"})


def said(problems: object) -> list[str]:
    """What a rule says, as text."""
    return [str(problem) for problem in problems]  # type: ignore[attr-defined]


def planted(path: str, *lines: str) -> Source:
    """A file of the product with these lines."""
    return Source.of(f"src/meshq/{path}", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        ("broker/catalog/_router.py", "from meshq.client import connect", "broker may not import client"),
        ("broker/catalog/_router.py", "import meshq.client", "broker may not import client"),
        ("broker/catalog/_router.py", "from meshq import client", "broker may not import client"),
        ("broker/catalog/_router.py", "from meshq import connect", "broker may not import client"),
        ("broker/_router.py", "from ..client import connect", "broker may not import client"),
        ("client/_link.py", "def f():\n    import meshq.broker", "client may not import broker"),
        ("client/_link.py", "if TYPE_CHECKING:\n    from meshq.broker import Core", "client may not import broker"),
        ("node/_broker.py", "from meshq.testing import fixture", "node may not import testing"),
        ("broker/core/_x.py", "from meshq.env import real", "broker may not import env"),
        ("wire/_frames.py", "from meshq.store import Journal", "wire may not import store"),
        (
            "broker/core/_core.py",
            "from meshq.store._journal import Journal",
            "meshq.store._journal is private to store",
        ),
        ("attic/_x.py", "import attrs", "unit 'attic' is not in"),
    ],
)
def test_an_import_that_goes_up_is_found(path: str, line: str, message: str) -> None:
    (problem,) = said(imports.layer_problems(planted(path, "'''Doc.'''", line), MODULES))
    assert message in problem
    assert problem.startswith((f"src/meshq/{path}:2:", f"src/meshq/{path}:3:", f"src/meshq/{path}:1: unit"))


def test_an_import_that_goes_down_is_fine() -> None:
    source = planted(
        "broker/core/_core.py", "from meshq.wire import Frame", "from meshq import errors", "from . import _queue"
    )
    assert said(imports.layer_problems(source, MODULES)) == []


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        ("broker/queue/_queue_machine.py", "import trio", "may not import trio"),
        ("broker/queue/_queue_machine.py", "from time import monotonic", "may not import time"),
        ("broker/queue/_queue_machine.py", "import concurrent.futures", "may not import concurrent"),
        ("broker/queue/_queue_machine.py", "from meshq.store._journal import Journal", "doer meshq.store._journal"),
        ("wire/_msgpack.py", "import os", "may not import os"),
        ("settings.py", "import logging", "may not import logging"),
        ("store/segments/_reclaim_plan.py", "import random", "may not import random"),
        ("store/formats/_batch_format.py", "def f():\n    import socket", "may not import socket"),
    ],
)
def test_a_decider_that_knows_the_world_is_found(path: str, line: str, message: str) -> None:
    (problem,) = said(imports.purity_problems(planted(path, line), MODULES, WORLDLY))
    assert message in problem


def test_a_doer_may_know_trio_and_a_decider_what_knows_nothing() -> None:
    doer = planted("broker/_queue.py", "import trio")
    assert said(imports.purity_problems(doer, MODULES, WORLDLY)) == []
    decider = planted(
        "broker/queue/_queue_machine.py", "from meshq.wire import X", "from meshq.broker.queue._run import Y"
    )
    assert said(imports.purity_problems(decider, MODULES, WORLDLY)) == []


def test_knowing_somebody_who_knows_the_world_is_knowing_the_world() -> None:
    files = [
        planted("broker/_a.py", "from meshq.broker._b import B"),
        planted("broker/_b.py", "def f():", "    from meshq.broker._c import C"),
        planted("broker/_c.py", "import trio"),
        planted("broker/_d.py", "from meshq.abc import Disk"),
        planted("abc/_env.py", "import random"),
    ]
    modules = frozenset(source.module for source in files)
    worldly = imports.worldly_modules(files, modules)
    assert worldly == {"meshq.broker._a", "meshq.broker._b", "meshq.broker._c"}


@pytest.mark.parametrize(
    "line", ["import os; os.kill(1, 9)", "from time import time", "import random", "import socket", "import uuid"]
)
def test_reaching_outside_past_env_is_found(line: str) -> None:
    assert len(said(imports.outside_world_problems(planted("store/_journal.py", line)))) == 1
    for harmless in ("from os import fspath", "import os; p: os.PathLike[str]", "from ssl import SSLContext"):
        assert said(imports.outside_world_problems(planted("store/_journal.py", harmless))) == []
    assert said(imports.outside_world_problems(planted("testing/_tripwires.py", line))) == []


def test_a_dependency_that_nobody_declared_is_found() -> None:
    (problem,) = said(imports.dependency_problems(planted("broker/core/_core.py", "import trio", "import rich.table")))
    assert problem == "src/meshq/broker/core/_core.py:2: broker may not depend on rich"
    assert said(imports.dependency_problems(planted("demo/_table.py", "from rich.table import Table"))) == []


@pytest.mark.parametrize("line", ["from trio._core import _run", "import trio._core", "trio._core._run._r.random()"])
def test_private_names_of_trio_are_found(line: str) -> None:
    assert said(imports.private_trio_problems(planted("testing/_network.py", line)))
    assert said(imports.private_trio_problems(planted("testing/_scheduler.py", line))) == []


MODULES_IN_ROOMS = frozenset(
    {"qa", "qa.seeds", "qa.checkers.calm", "qa.mesh.scenario", "qa.simulation.scenario"}
    | {"meshq.broker.settlement._expiry", "meshq.broker.core._core"}
    | {"meshq.store", "meshq.store._journal", "meshq.store.formats._record", "meshq.store.segments._segment_index"}
)


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        ("qa/checkers/calm.py", "from qa.mesh.scenario import f", "the room checkers of qa may not import mesh"),
        ("qa/simulation/scenario.py", "from qa import seeds", "the room simulation of qa may not import qa"),
        ("qa/simulation/scenario.py", "import qa.seeds", "the room simulation of qa may not import qa"),
        (
            "src/meshq/store/formats/_record.py",
            "if x: from meshq.store.segments._segment_index import f",
            "the room formats of store may not import segments",
        ),
        (
            "src/meshq/store/segments/_segment_index.py",
            "from meshq.store import Journal",
            "the room segments of store may not import store",
        ),
        (
            "src/meshq/broker/settlement/_expiry.py",
            "if TYPE_CHECKING: from meshq.broker.core._core import Core",
            "the room settlement of broker may not import core",
        ),
        (
            "src/meshq/store/attic/_record.py",
            "import attrs",
            "the room attic of store is not in tests/tidy/layers.py: say what it may import",
        ),
    ],
)
def test_a_room_that_imports_upwards_is_found(path: str, line: str, message: str) -> None:
    modules = MODULES_IN_ROOMS | {"meshq.store.attic._record"}
    (problem,) = said(imports.room_problems(Source.of(path, f"{line}\n"), modules))
    assert problem == f"{path}:1: {message}"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("qa/seeds.py", ["from qa.checkers.calm import f", "from qa.mesh.scenario import g", "import meshq"]),
        ("src/meshq/store/_journal.py", ["from meshq.store.segments._segment_index import f", "import qa.seeds"]),
        ("src/meshq/store/segments/_segment_index.py", ["from meshq.store.formats._record import f"]),
        ("src/meshq/store/__init__.py", ["from meshq.store.attic import f"]),
    ],
)
def test_a_room_may_import_those_below(path: str, lines: list[str]) -> None:
    assert said(imports.room_problems(Source.of(path, "\n".join(lines) + "\n"), MODULES_IN_ROOMS)) == []


def test_a_public_name_that_is_imported_from_a_private_module_is_found() -> None:
    source = Source.of(
        "tests/x.py", "from meshq.testing._node import SimNode, split\nfrom meshq.testing import Swarm\n"
    )
    (problem,) = said(imports.published_problems(source, "meshq.testing", frozenset({"SimNode", "Swarm"})))
    assert problem == "tests/x.py:1: import SimNode from meshq.testing"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from meshq.testing._network import MemoryNetwork", True),
        ("    import meshq.store._journal", True),
        ("from meshq.store import Journal, _journal", True),
        (".. autoclass:: meshq.store._journal.Journal", True),
        ("from meshq.testing import MemoryNetwork", False),
        ("from meshq import Broker  # not meshq._broker", False),
        ("_private = 1", False),
    ],
)
def test_a_private_module_in_code_that_users_read_is_found(line: str, found: bool) -> None:
    assert bool(said(texts.private_import_problems("examples/x.py", line))) is found
    assert bool(said(texts.private_import_problems("docs/x.md", f"```python\n{line}\n```"))) is found
    assert said(texts.private_import_problems("docs/x.md", f"```\n```\n{line}")) == []


def test_a_circle_in_the_table_is_found() -> None:
    circle = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert imports.cycles(circle) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rule", "lines", "message"),
    [
        (bans.call_problems, ["f = open('x')"], ":1: open():"),
        (bans.call_problems, ["print(1)"], ":1: print():"),
        (bans.call_problems, ["async def f():", "    await trio.to_thread.run_sync(g)"], ":2: trio.to_thread"),
        (bans.call_problems, ["s = trio.socket.socket()"], ":1: trio.socket.socket():"),
        (bans.call_problems, ["now = datetime.now()"], ":1: datetime.now():"),
        (bans.finaliser_problems, ["class A:", "    def __del__(self): ..."], ":2: __del__"),
        (bans.broad_except_problems, ["try: f()", "except Exception:", "    pass"], ":2: except Exception"),
        (bans.broad_except_problems, ["try: f()", "except:", "    pass"], ":2: except Exception"),
        (bans.broad_except_problems, ["try: f()", "except (OSError, BaseException):", "    g()"], ":2: except Base"),
        (
            bans.broad_except_problems,
            ["try: f()", "except Exception:", "    def g():", "        raise"],
            ":2: except Exception",
        ),
        (bans.async_generator_problems, ["async def f():", "    yield 1"], ":1: f is an async generator"),
        (bans.set_order_problems, ["for x in {1, 2}:", "    f(x)"], ":1: iterates a set"),
        (bans.set_order_problems, ["a = [x for x in set(y)]"], ":1: iterates a set"),
        (bans.set_order_problems, ["a = list({x for x in y})"], ":1: iterates a set"),
        (bans.cause_problems, ["def f():", "    raise UnblockedError('x')"], ":2: UnblockedError without a cause"),
        (bans.cause_problems, ["def f():", "    raise first_error(group) from None"], ":2: a raise of what was caught"),
        (bans.cause_problems, ["def f():", "    e = BrokenError('x')", "    return e"], ":2: BrokenError without"),
        (bans.cause_problems, ["def f():", "    raise decline('body_missing', 'x')"], ":2: decline('body_missing') w"),
        (bans.cause_problems, ["def f():", "    g(decline('unknown_producer', 'x'))"], ":2: decline('unknown_producer"),
        (bans.state_problems, ["cache = {}"], ":1: cache is mutable"),
        (bans.state_problems, ["SEEN = set()"], ":1: SEEN is mutable"),
        (bans.state_problems, ["def f():", "    global n", "    n = 1"], ":2: global n"),
    ],
)
def test_what_is_banned_is_found(rule: object, lines: list[str], message: str) -> None:
    (problem,) = said(rule(planted("broker/_x.py", *lines)))  # type: ignore[operator]
    assert message in problem


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (bans.broad_except_problems, ["try: f()", "except Exception as error:", "    raise E from error"]),
        (bans.broad_except_problems, ["try: f()", "except OSError:", "    pass"]),
        (bans.async_generator_problems, ["@asynccontextmanager", "async def f():", "    yield 1"]),
        (bans.cause_problems, ["def f():", "    raise UnblockedError('x') from why"]),
        (bans.cause_problems, ["def f():", "    e = BrokenError('x')", "    return caused(e, why)"]),
        (bans.cause_problems, ["def f():", "    e = decline('silent', 'x')", "    raise e from why"]),
        (bans.cause_problems, ["def f():", "    raise decline('forbidden', 'x')"]),
        (bans.set_order_problems, ["for x in sorted({1, 2}): f(x)"]),
        (bans.state_problems, ["TABLE = {1: 2}", "__all__ = ['a']", "x: Final = [1]"]),
    ],
)
def test_what_is_allowed_is_left_alone(rule: object, lines: list[str]) -> None:
    assert said(rule(planted("broker/_x.py", *lines))) == []  # type: ignore[operator]


def test_a_public_module_in_a_package_and_code_in_an_init_are_found() -> None:
    assert "_router.py" in said(bans.package_problems(planted("broker/router.py", "x = 1")))[0]
    code = planted(
        "broker/__init__.py", "'''Doc.'''", "from meshq.broker._x import X", "def f(): ...", "__all__ = ['X']"
    )
    assert said(bans.package_problems(code)) == [
        "src/meshq/broker/__init__.py:3: a package's __init__ has only imports and __all__"
    ]
    silent = planted("broker/__init__.py", "from meshq.broker._x import X")
    assert "__all__" in said(bans.package_problems(silent))[0]
    assert said(bans.package_problems(planted("broker/queue/__init__.py", "'''Doc.'''"))) == []
    offering = planted("broker/queue/__init__.py", "'''Doc.'''", "from meshq.broker.queue._run import Run")
    assert "__all__" in said(bans.package_problems(offering))[0]


def test_what_is_too_long_is_found() -> None:
    long = planted("broker/_x.py", "def f():", "    '''Doc.'''", *["    g()"] * 61)
    assert said(shapes.function_problems(long)) == ["src/meshq/broker/_x.py:1: f has 61 lines, more than 60"]
    assert (
        said(shapes.function_problems(planted("broker/_x.py", "def f():", "    '''Doc.'''", *["    g()"] * 60))) == []
    )
    assert len(said(shapes.file_problems(planted("broker/_x.py", *["x = 1"] * 501)))) == 1
    assert said(shapes.file_problems(planted("broker/_x.py", *["x = 1"] * 500))) == []
    sizes = [planted("broker/_x.py", *["x = 1"] * lines) for lines in (250, 10, 400)]
    assert "median" in said(shapes.median_problems(sizes))[0]
    assert said(shapes.median_problems(sizes[1:2])) == []
    shelf = [planted(f"broker/_x{number}.py") for number in range(25)] + [planted("broker/__init__.py")]
    assert said(shapes.folder_problems(shelf)) == []
    (full,) = said(shapes.folder_problems([*shelf, planted("broker/_y.py")]))
    assert "src/meshq/broker has 26 files, more than 25" in full


@pytest.mark.parametrize(
    "lines",
    [
        ["class A:", "    def __init__(self, a, b, c, d, e, f): ..."],
        ["@attrs.define", "class A:", *[f"    {name}: int" for name in "abcdef"]],
        ["@frozen(slots=True)", "class A:", *[f"    {name}: int = field(alias='x')" for name in "abcdef"]],
    ],
)
def test_a_constructor_with_six_positional_parameters_is_found(lines: list[str]) -> None:
    (problem,) = said(shapes.constructor_problems(planted("broker/_x.py", *lines)))
    assert "A takes 6 parameters by position" in problem


@pytest.mark.parametrize(
    "lines",
    [
        ["class A:", "    def __init__(self, a, b, c, d, e, *, f, g): ..."],
        ["@attrs.define(kw_only=True)", "class A:", *[f"    {name}: int" for name in "abcdef"]],
        ["@attrs.define", "class A:", *[f"    {name}: int = attrs.field(init=False)" for name in "abcdef"]],
        ["@attrs.define", "class A:", *[f"    {name}: list[int] = attrs.field(factory=list)" for name in "abcdef"]],
        ["@attrs.define", "class A:", *[f"    {name}: int = 0" for name in "abcdef"]],
        ["@attrs.define(init=False)", "class A:", *[f"    {name}: int" for name in "abcdef"]],
    ],
)
def test_named_parameters_are_as_many_as_one_likes(lines: list[str]) -> None:
    assert said(shapes.constructor_problems(planted("broker/_x.py", *lines))) == []


def test_a_missing_docstring_is_found_unless_the_contract_has_it() -> None:
    contract = planted("abc/x.py", "'''Doc.'''", "class C:", "    '''Doc.'''", "    def f(self):", "        '''Doc.'''")
    source = planted("env/_x.py", "class D(C):", "    def f(self): ...", "    def g(self): ...", "def h(): ...")
    documented = shapes.Documented([contract, source])
    assert said(shapes.docstring_problems(contract, documented)) == []
    assert [problem.partition("py:")[2] for problem in said(shapes.docstring_problems(source, documented))] == [
        "1: the module has no docstring",
        "1: D has no docstring",
        "3: D.g has no docstring",
        "4: h has no docstring",
    ]


def test_a_public_coroutine_without_its_three_words_is_found() -> None:
    source = planted("client/_x.py", "class Client:", "    async def send(self):", "        raise E('no')")
    problems = said(shapes.coroutine_problems(source, shapes.Documented([]), frozenset({"Client"})))
    assert [word for word in ("Checkpoint:", "Cancellation:", "Raises:") if word in " ".join(problems)] == [
        "Checkpoint:",
        "Cancellation:",
        "Raises:",
    ]
    assert said(shapes.coroutine_problems(source, shapes.Documented([]), frozenset({"Other"}))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("see https:" + "//pypi.example.net/simple", "names the host pypi.example.net"),
        ("git clone https:" + "//user:word@git.example.net/x", "names the host git.example.net"),
        ("connect('tcp://192.168." + "7.9:61616')", "has the address"),
        ("cd /" + "home/someone", "path of somebody's machine"),
        ("pip install --index" + "-url x", "package index"),
        ("# TO" + "DO: later", "work for later"),
        ("made by a language" + " model", "who typed it"),
    ],
)
def test_what_no_file_may_say_is_found(text: str, message: str) -> None:
    (problem,) = said(texts.text_problems("docs/x.md", f"first line\n{text}\n"))
    assert problem.startswith("docs/x.md:2: ")
    assert message in problem


@pytest.mark.parametrize("text", ["udp://231.7.7.7:9876", "tcp://127.0.0.1:0", "src/work/x", "0.0.0.0", "1.2.3"])
def test_what_a_file_may_say_is_left_alone(text: str) -> None:
    assert said(texts.text_problems("docs/x.md", text)) == []
