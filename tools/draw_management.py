"""Write the tables of what a broker tells and can be asked from the code that they describe:
``python tools/draw_management.py``.

Each stands between two comments, ``<!-- drawn: NAME -->`` and ``<!-- end -->``; a test compares them with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import attrs

from meshq.broker.management._management import OPERATIONS, Need, Parameter
from meshq.broker.management._queue_operations import SETTINGS
from meshq.notifications import KINDS

GUIDES = Path(__file__).parents[1] / "docs" / "how-to"


def table(*rows: tuple[str, ...]) -> str:
    """A table in Markdown, the first row its head."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"| {' | '.join('---' for _ in rows[0])} |", *rest])


def first_sentence(thing: object) -> str:
    """What a docstring begins with."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.replace("``", "`")


def notifications() -> str:
    """Every kind: its record, its fields, and what it tells."""
    rows = [
        (
            f"`{kind.kind}`",
            f"`{kind.__name__}`",
            ", ".join(f"`{field.name}`" for field in attrs.fields(kind) if field.name != "timestamp"),
            first_sentence(kind),
        )
        for kind in KINDS
    ]
    return table(("`notification`", "record", "beside `timestamp`", "what happened"), *rows)


def needs(need: Need) -> str:
    """A permission, and where it is needed."""
    permission = "*look*" if need.permission == "look" else f"`{need.permission}`"
    if need.where == "node":
        return f"{permission} at `activemq.management`"
    if need.where == "temporary":
        return f"{permission} at `$temporary.#`"
    named = f"`{need.argument}`" + (f" or `{need.otherwise}`" if need.otherwise else "")
    if need.where in ("address", "target"):
        return f"{permission} at {named}"
    return f"{permission} where the {need.where} {named} is"


def parameter(name: str, known: Parameter) -> str:
    """An argument as it is shown."""
    return f"`{name}`" if known.required else f"(`{name}`)"


def operations() -> str:
    """Every operation: its arguments, the permissions that it takes, and what it does."""
    rows = []
    for name, operation in OPERATIONS.items():
        shown = [parameter(*item) for item in operation.parameters.items() if item[0] not in SETTINGS]
        if len(shown) < len(operation.parameters):
            shown.append("settings of `AddressSettings` by name")
        taken = "only other nodes" if operation.only_nodes else "; ".join(map(needs, operation.needs))
        rows.append((f"`{name}`", ", ".join(shown), taken, first_sentence(operation.work)))
    return table(("`operation`", "arguments", "permissions", "what it is about"), *rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "notifications": ("watch-a-broker.md", notifications),
    "operations": ("manage-by-messages.md", operations),
}


def redrawn(page: str, text: str) -> str:
    """The text of a page with its tables drawn anew."""
    for name, (where, draw) in TABLES.items():
        if where == page:
            pattern = rf"(<!-- drawn: {name} -->\n).*?(<!-- end -->)"
            text, found = re.subn(pattern, lambda match: f"{match[1]}{draw()}\n{match[2]}", text, flags=re.S)  # noqa: B023
            if found != 1:
                raise ValueError(f"{page} has {found} places for the table {name!r}")
    return text


if __name__ == "__main__":
    for page in sorted({where for where, _ in TABLES.values()}):
        path = GUIDES / page
        path.write_text(redrawn(page, path.read_text(encoding="utf-8")), encoding="utf-8")
