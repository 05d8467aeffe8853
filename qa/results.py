"""Where the files of results are, how commands read and write them, and the facts that each records about its run."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

#: In the root of the project.
RESULTS: Final = "docs/results"
PACKAGES: Final = ("meshq", "trio", "attrs", "msgpack", "cryptography")
#: The type of fields that are numbers, whole or not.
NUMBER: Final = (int, float)

#: The fields that something in a file has, and their types.
Fields = Mapping[str, type | tuple[type, ...]]


class ResultError(Exception):
    """A file of results can't be used by a command.  The text is a message for the user."""


@attrs.frozen
class ResultFormat:
    """The form of a file of results: its kind, its version and its fields."""

    kind: str
    #: The field to which several runs add, a list or an object; empty: each run replaces the whole file.
    parts: str = ""
    parts_type: type = list
    #: The fields of each part.
    part_fields: Fields = attrs.field(factory=dict)
    version: int = 1
    #: Fields of the whole file, beside the parts.
    fields: Fields = attrs.field(factory=dict)
    #: Whether files of this kind were once written without saying so.
    once_unnamed: bool = False

    def empty(self) -> dict[str, Any]:
        """Return the content of a file to which nothing was added yet."""
        return {"kind": self.kind, "format": self.version, **({self.parts: self.parts_type()} if self.parts else {})}

    def problem(self, content: object) -> str:
        """Return why the content of a file is refused; empty if it is accepted."""
        if not isinstance(content, dict):
            return "is damaged: it holds no object"
        unnamed = self.once_unnamed and not {"kind", "format"} & content.keys()
        if not unnamed and content.get("kind") != self.kind:
            return f"holds results of the kind {content.get('kind')!r}, and this command writes {self.kind!r}"
        if not unnamed and content.get("format") != self.version:
            return f"has the format {content.get('format')!r}, and this command knows {self.version}"
        parts_field: Fields = {self.parts: self.parts_type} if self.parts else {}
        if wrong := _wrong_field(content, {**self.fields, **parts_field}):
            return f"is damaged: it has no right {wrong!r}"
        parts = content[self.parts] if self.parts else []
        for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            if not isinstance(part, dict):
                return f"is damaged: {name!r} of its {self.parts!r} is no object"
            if wrong := _wrong_field(part, self.part_fields):
                return f"is damaged: {name!r} of its {self.parts!r} has no right {wrong!r}"
        return ""


def _wrong_field(found: Mapping[str, Any], fields: Fields) -> str:
    return next((name for name, allowed in fields.items() if not isinstance(found.get(name), allowed)), "")


class ResultFile:
    """A file of results of one format.

    A file of another kind is never read or replaced.  The file is written whole: who reads it meanwhile sees the old
    content or the new one.
    """

    def __init__(self, path: Path, form: ResultFormat) -> None:
        self._path = path
        self._form = form

    @property
    def name(self) -> str:
        """The name by which a command was told the file."""
        return self._path.stem

    def __str__(self) -> str:
        return str(self._path)

    def prepare(self) -> None:
        """Make the folder, and see that the file can be read and written.  Raises: ResultError."""
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultError(f"the folder {folder} can't be made: {error.strerror}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ResultError(f"nothing can be written to the folder {folder}")
        self.read()

    def read(self) -> dict[str, Any]:
        """Return the content; of a file that is not there, an empty one.  Raises: ResultError."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self._form.empty()
        except OSError as error:
            raise ResultError(f"{self._path} can't be read: {error.strerror}") from None
        except ValueError as error:
            raise ResultError(f"{self._path} is damaged: {error}; move it away or name another file") from None
        if problem := self._form.problem(content):
            raise ResultError(f"{self._path} {problem}; name another file")
        found: dict[str, Any] = content
        return found

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the content; the kind and the format are written by this method."""
        whole = {"kind": self._form.kind, "format": self._form.version, **content}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)

    def run_of(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the run that had these settings, if there is one."""
        same = [run for run in self.read()[self._form.parts] if settings.items() <= run.items()]
        return same[-1] if same else None

    def put_run(self, settings: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Write a run down, in place of the one that had these settings.  Runs with others stay."""
        content = self.read()
        others = [other for other in content[self._form.parts] if not settings.items() <= other.items()]
        self.write({**content, self._form.parts: [*others, {**run}]})


def add_result_option(
    parser: argparse.ArgumentParser, form: ResultFormat, does: str = "write the run down in", root: Path | None = None
) -> None:
    """Let a command take ``--result NAME``, as a :class:`ResultFile` that is prepared.

    A file that the command must not write ends it with a sentence and the exit status 2, before its work begins.
    """

    def opened(name: str) -> ResultFile:
        if not name or Path(name).name != name:
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a file: give it without a folder")
        file = ResultFile(Path(root or "", RESULTS, f"{name}.json"), form)
        try:
            file.prepare()
        except ResultError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return file

    parser.add_argument("--result", metavar="NAME", type=opened, help=f"{does} {RESULTS}/NAME.json")


def with_commit(commits: Sequence[str], commit: str) -> list[str]:
    """Return the commits at which a run was done, with the one that goes on with it."""
    return [*commits, *([commit] if commit not in commits else [])]


def commit() -> str:
    """The commit that is run; ``+``: tracked files differ from it.  Empty outside a checkout."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "qa"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed else "")


def about_here() -> dict[str, Any]:
    """Return the facts of a run: commit, date, cores and versions."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "versions": versions,
    }
