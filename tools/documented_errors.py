"""Whether the tests that ``tests/documented_errors.toml`` names do raise the errors that it names them for.

``python tools/documented_errors.py`` runs them, watches every public call, and fails unless each error comes out of the
call whose docstring names it.  That the table is complete, and that the tests exist, is asked by tests/tidy.
"""

from __future__ import annotations

import functools
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import meshq
from tests.documented_errors import TABLE, Pair, pairs, things


class Watch:
    """A plugin of pytest: what came out of which public call in which test."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str, str]] = set()
        self._test = ""
        for name, thing in things().items():
            if inspect.isfunction(thing):
                for owner in (meshq, sys.modules[meshq._HOME[name]]):
                    self._set(owner, name, name)
        for pair in pairs():
            kind, _, member = pair.callable.partition(".")
            if inspect.isclass(things()[kind]):
                self._set(things()[kind], member or "__init__", pair.callable)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test begins."""
        self._test = item.nodeid.partition("[")[0]

    def shown(self, pair: Pair, tests: list[str]) -> bool:
        """Whether one of these tests has shown it."""
        return any((pair.callable, pair.error, test) in self.seen for test in tests)

    def _set(self, owner: Any, member: str, name: str) -> None:
        found = inspect.getattr_static(owner, member)
        if isinstance(found, property):
            setattr(owner, member, property(self._watched(name, found.fget)))
        elif isinstance(found, classmethod):
            setattr(owner, member, classmethod(self._watched(name, found.__func__)))
        else:
            setattr(owner, member, self._watched(name, found))

    def _watched(self, name: str, function: Any) -> Callable[..., Any]:
        if getattr(function, "watched", None) == name:
            return function  # type: ignore[no-any-return]

        @functools.wraps(function)
        async def awaited(*arguments: Any, **keywords: Any) -> Any:
            with self._noted(name):
                return await function(*arguments, **keywords)

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            with self._noted(name):
                found = function(*arguments, **keywords)
            if inspect.isgenerator(found):
                return self._iterated(name, found)
            return self._entered(name, found) if isinstance(found, AbstractContextManager) else found

        made = awaited if inspect.iscoroutinefunction(function) else called
        made.watched = name  # type: ignore[attr-defined]
        return made

    def _iterated(self, name: str, found: Iterator[Any]) -> Iterator[Any]:
        with self._noted(name):
            yield from found

    @contextmanager
    def _entered(self, name: str, found: AbstractContextManager[Any]) -> Iterator[Any]:
        with self._noted(name), found as value:
            yield value

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for one in leaves(error):
                self.seen.update((name, kind.__name__, self._test) for kind in type(one).__mro__)
            raise


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, out of their groups."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def main() -> int:
    """Run the named tests; say what they did not show."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    watch = Watch()
    named = sorted({test for errors in table.values() for tests in errors.values() for test in tests})
    # The package, which has a plugin of pytest, was loaded before pytest: nobody needs its asserts explained.
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    status = int(pytest.main(["-q", "-p", "no:cacheprovider", *quiet, *named], plugins=[watch]))
    missed = 0
    for pair in pairs():
        tests = table[f"{pair.see}.*" if pair.see else pair.callable][pair.error]
        if not watch.shown(pair, tests):
            missed += 1
            print(f"{pair.callable} {pair.error}: not raised by {', '.join(tests)}")
    print(f"{len(pairs())} errors of public calls, {missed} of them not shown")
    return 1 if missed or status else 0


if __name__ == "__main__":
    sys.exit(main())
