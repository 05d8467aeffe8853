"""The methods of the trio classes as their source says them, and their documentation in the words of each face."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args

import attrs

from meshq import client

WIDTH: Final = 120
Face = Literal["aio", "blocking"]
FACES: Final[tuple[Face, ...]] = get_args(Face)
#: Parameters that are looked at in the caller's thread.
ADAPTED: Final = {"messages": "in_full(messages)"}

#: What is said otherwise, because the call hops to another thread or because the face is no trio.
WORDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "aio": (),
    "blocking": (
        (r"\basync (with|for)\b", r"\1"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\ban async iterator\b", "an iterator"),
        (r"(?<!\btrio )\btask(s?)\b", r"thread\1"),
        (r"\bthe cancellation goes on\b", "the interrupt goes on"),
    ),
}
_TAKEN: Final = ("Cancellation: the message was not taken.", "Cancellation: it was taken or not: roll back.")
_FIRST: Final = "Checkpoint: always, the first time."
_LEFT: Final = (
    "what was taken goes on its way.",
    "what the trio loop has taken goes on its way, the rest is not sent.",
)
_WINDOW: Final = (
    "Waits while ``window`` messages are unconfirmed, and while the broker grants no credit.",
    "Waits while ``window`` messages are unconfirmed.",
)
_ENTERED: Final = (
    ("UsageError: it was used before.", "UsageError: it was used before; or a trio task is calling."),
    (
        "with the attempts that the settings allow.",
        "with the attempts that the settings allow; or the broker whose client it is has stopped.",
    ),
)
OTHERWISE: Final[Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]]] = {
    "aio": {
        "Transaction.send": (_TAKEN,),
        "Client.__aenter__": _ENTERED,
        "Consumer.__aexit__": (("Checkpoint: when the broker has to be told.", "Checkpoint: always."),),
        "Consumer.close": (("Checkpoint: when the broker has to be told.", "Checkpoint: always, the first time."),),
        "Producer.__aexit__": (("Checkpoint: when something is unconfirmed.", "Checkpoint: always."), _LEFT),
        "Producer.close": (
            ("Checkpoint: when something is unconfirmed.", "Checkpoint: always, the first time."),
            _LEFT,
        ),
        "Producer.send": (_WINDOW,),
        "Client.serve": (
            (
                "A handler that is not async ends the worker.",
                "A handler that is not async ends the worker.  A ``CancelledError`` of a handler's own is an "
                "exception, too, and told as a ``RuntimeError``.",
            ),
            (
                "before the cancellation goes on.",
                "before the cancellation goes on.  A second one cancels the handlers.",
            ),
        ),
    },
    "blocking": {
        "Transaction.send": (_TAKEN,),
        "Client.__aenter__": _ENTERED,
        "Client.stop_serving": (("Returns at once.", "Returns at once; any thread may call it."),),
        "Producer.__aexit__": (_LEFT,),
        "Producer.close": (_LEFT,),
        "Producer.send": (_WINDOW,),
        "Client.serve": (
            ("A handler that is not async ends the worker.", "Neither function may be async."),
            (
                "could not be opened or has failed.",
                "could not be opened or has failed.\n\nHandlers run in threads of the worker, which end with it.",
            ),
            ("before the cancellation goes on.", "before the interrupt goes on.  A second one does not wait for them."),
        ),
    },
}


@attrs.frozen
class Method:
    """A public method or property of a trio class, as its source says it."""

    owner: str
    name: str
    text: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    #: Where its module has its names from: name -> import line.
    imports: Mapping[str, str]

    @property
    def key(self) -> str:
        """The name with its class."""
        return f"{self.owner}.{self.name}"

    @property
    def is_property(self) -> bool:
        """Whether it is looked up and not called."""
        return any(ast.unparse(one) == "property" for one in self.node.decorator_list)

    @property
    def is_async(self) -> bool:
        """Whether it is awaited."""
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def result(self) -> str:
        """The annotation of what it returns."""
        return self.words(self.node.returns)

    def words(self, node: ast.expr | None) -> str:
        """An expression as it is written."""
        found = None if node is None else ast.get_source_segment(self.text, node)
        assert found is not None, f"{self.key} is not typed"
        return " ".join(found.split())

    def parameters(self) -> Iterator[tuple[str, str]]:
        """Each parameter after ``self`` as it is declared, and as it is handed on."""
        given = self.node.args
        plain = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
        for one, default in list(zip(plain, defaults, strict=True))[1:]:
            yield self._declared(one, default), ADAPTED.get(one.arg, one.arg)
        if given.vararg is not None:
            yield f"*{self._declared(given.vararg, None)}", f"*{given.vararg.arg}"
        elif given.kwonlyargs:
            yield "*", ""
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            yield self._declared(one, default), f"{one.arg}={one.arg}"

    def _declared(self, one: ast.arg, default: ast.expr | None) -> str:
        typed = f"{one.arg}: {self.words(one.annotation)}"
        return typed if default is None else f"{typed} = {self.words(default)}"

    def names(self) -> set[str]:
        """The names in its signature, for which imports are needed."""
        found = [self.node.returns, *self.node.args.defaults, *self.node.args.kw_defaults]
        found += [one.annotation for one in ast.walk(self.node.args) if isinstance(one, ast.arg)]
        names = {one.id for node in found if node is not None for one in ast.walk(node) if isinstance(one, ast.Name)}
        return {name for name in names if not hasattr(builtins, name) and name != "Self"}


def method_of(owner: type[Any], name: str) -> Method | None:
    """A method or property of a trio class, wherever the class has it from; None if it is no function."""
    value = inspect.getattr_static(owner, name, None)
    function = value.fget if isinstance(value, property) else value
    if not inspect.isfunction(function):
        return None
    function = inspect.unwrap(function)
    text = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return Method(owner.__name__, name, text, node, imports_of(sys.modules[function.__module__]))


def imports_of(module: Any) -> dict[str, str]:
    """Where a module has its names from; its own come from the package that passes them on."""
    found: dict[str, str] = {}
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({one.name: f"import {one.name}" for one in node.names if one.asname is None})
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            # What is private to the client has its public name in the package.
            place = "meshq.client" if node.module.startswith("meshq.client.") else node.module
            found.update({one.asname or one.name: f"from {place} import {one.name}" for one in node.names})
    own = [name for name in vars(module) if name in client.__all__]
    return {**{name: f"from meshq.client import {name}" for name in own}, **found}


def said(method: Method, face: Face, *, hops: bool = True) -> str:
    """The documentation of a method, in the words of a face; ``hops``: its calls go to another thread."""
    text = ast.get_docstring(method.node) or ""
    for old, new in OTHERWISE[face].get(method.key, ()):
        words = re.compile(r"\s+".join(map(re.escape, old.split())))
        assert words.search(text), f"{method.key} does not say: {old}"
        text = words.sub(lambda _, new=new: new, text, count=1)
    if face == "aio" and hops:
        # Such a call always waits.
        text = re.sub(r"(?<=Checkpoint: ).*?(?=\s*(Cancellation:|Raises:|\Z))", "always.", text, flags=re.DOTALL)
    if face == "blocking":
        text = re.sub(r"Checkpoint: .*?(?=\s*(Cancellation:|Raises:|\Z))\s*", "", text, flags=re.DOTALL)
        text = text.replace("Cancellation:", "Interrupted:").rstrip()
    for old, new in WORDS[face]:
        text = re.sub(old, new, text)
    # The quotes count in the first line.
    return "\n".join(_filled(f'"""{text}')).removeprefix('"""')


def _filled(text: str) -> Iterator[str]:
    """The lines of a docstring; paragraphs with a line that is too long, or far too short, are filled anew."""
    for paragraph in re.split(r"\n(?=\n|Interrupted:|Cancellation:|Checkpoint:|Raises:|    \S)", text):
        lines = paragraph.lstrip("\n").split("\n")
        blank = [""] if paragraph.startswith("\n") else []
        indents = [re.match(r" *", line).group() for line in lines[:2]]  # type: ignore[union-attr]
        joined = " ".join(line.strip() for line in lines)
        joined = re.sub(r"(?<=[.:]) (?=[A-Z`])", "  ", joined) if max(map(len, lines)) > WIDTH - 8 else ""
        if joined:
            lines = textwrap.wrap(
                joined.replace(":  ", ": "),
                WIDTH - 8,
                initial_indent=indents[0],
                # An entry of a list goes on below its name.
                subsequent_indent=indents[1] if len(lines) > 1 else indents[0] * 2,
                break_on_hyphens=False,
                break_long_words=False,
            )
        yield from [*blank, *lines]
