"""Draw docs/spark-options.md from the table of options: ``python -m tools.draw_spark_options``."""

from __future__ import annotations

from pathlib import Path

from meshq import limits
from meshq.spark._columns_plan import SINK, SOURCE
from meshq.spark._options_plan import BATCH_READ, OPTIONS, STREAMING_READ, Option

PAGE = Path(__file__).parents[1] / "docs" / "spark-options.md"
HEAD = """# Options and columns for Spark

This page is drawn by `python -m tools.draw_spark_options` from the code.
Names count in any case.
An unknown option is an error that names the nearest one; an option that is out of place says where it belongs.
Times are seconds, or such as `500ms`, `10s`, `5m`, `1h`. How it works: [with Spark](how-to/with-spark.md).
"""
PROPERTIES = "`map<string,T>`, or a struct, with values of `string`, `binary`, `boolean`, `bigint`, `int`, `double`"


def _default(option: Option) -> str:
    if option.default is None:
        return "none"
    if type(option.default) is bool:
        return f"`{str(option.default).lower()}`"
    return f"`{option.default:g}`" if isinstance(option.default, int | float) else f"`{option.default}`"


def _table(title: str, options: list[Option]) -> list[str]:
    rows = []
    for option in options:
        uses = ", ".join(sorted(option.uses))
        rows.append(f"| `{option.name}` | {_default(option)} | {uses} | {option.kind.allowed} | {option.about} |")
    return [
        f"\n## {title}\n",
        "| option | default | for | allowed | what it does |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]


def page() -> str:
    """The page."""
    everywhere = [option for option in OPTIONS if len(option.uses) == 4]
    reads = [option for option in OPTIONS if option not in everywhere and option.uses & (BATCH_READ | STREAMING_READ)]
    writes = [option for option in OPTIONS if option not in everywhere and option not in reads]
    lines = [HEAD.rstrip()]
    for title, options in (("Everywhere", everywhere), ("Reads", reads), ("Writes", writes)):
        lines += _table(title, options)
    lines += [
        "\n## Columns that are read\n",
        "| column | type | may be NULL | with |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{column.name}` | `{column.type}` | {'yes' if column.nullable else 'no'} | "
            f"{f'`{column.group}`' if column.group else 'always'} |"
            for column in SOURCE
        ),
        "\n## Columns that may be written\n",
        "| column | type |",
        "| --- | --- |",
        *(f"| `{name}` | {' or '.join(f'`{kind}`' for kind in kinds) or PROPERTIES} |" for name, kinds in SINK.items()),
        "\n## Bodies\n",
        f"A `value` has at most {limits.MESSAGE_BYTES_MAX:,} bytes, read or written: a row is one buffer in the worker"
        " and in Java.",
        "A larger one fails its task, and the error names its place and the limit; a client reads it as a stream.",
        "What is read as a large body is a batch of its own, over the bytes as they came: no Python copies it.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
