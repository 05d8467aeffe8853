"""Count the seeds that the simulation needs to find each seeded bug.

A changed copy of the product runs the same command as the product.  The right checker has to find the bug: a bug that
only something else notices counts as missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs

from qa.arguments import COUNT, NATURAL
from qa.results import ResultFile, ResultFormat, about_here, add_result_option
from qa.seeded.bug import Bug
from qa.seeded.changed_copy import run_changed
from qa.seeded.mesh_bugs import ALL_BUGS

#: Seeds within which a bug has to be found.
SEEDS_MAX: Final = 300
FORMAT: Final = ResultFormat("seeded bugs", parts="bugs", parts_type=dict, part_fields={"seeds": int, "commit": str})
#: The stage that has a command of its own: features that meet on one queue.
PAIRS: Final = "pairs"


@attrs.frozen(kw_only=True)
class Hunt:
    """How the simulation did with one bug."""

    bug: Bug
    #: Seeds that were run, the one that found it included.
    seeds: int
    #: The seed in which one of the right checkers found it; None if there was none.
    seed: int | None
    #: The first seed in which anything was found.
    noticed: int | None
    #: What found it, and what was said first.
    caught_by: tuple[str, ...]
    what: str

    @property
    def caught(self) -> bool:
        """Whether one of the right checkers found it."""
        return self.seed is not None


def hunt(bug: Bug, *, first: int = 0, seeds: int = SEEDS_MAX, jobs: int = 1, soon: bool = False) -> Hunt:
    """Run seeds until one of the right checkers finds the bug.

    ``soon``: of the simulation that finds it soonest, not of the one in which promises have to hold for all faults.
    """
    arguments = ["--json", "--until", ",".join(bug.checkers)]
    arguments += ["--first", str(first), "--seeds", str(seeds), "--jobs", str(jobs)]
    stage = (bug.soon if soon else "") or bug.stage or ("mesh" if bug.mesh else "")
    if stage == PAIRS:
        found = run_changed(bug, "qa.pairs", arguments)
    else:
        found = run_changed(bug, "qa.simulate", [*arguments, *([f"--{stage}"] if stage else [])])
    failed = found["failed"]
    last = failed[-1] if failed else {"seed": None, "caught_by": [], "what": ""}
    caught = any(checker in bug.checkers for checker in last["caught_by"])
    return Hunt(
        bug=bug,
        seeds=found["seeds"],
        seed=last["seed"] if caught else None,
        noticed=failed[0]["seed"] if failed else None,
        caught_by=tuple(last["caught_by"]),
        what=last["what"],
    )


def result_of(hunts: Sequence[Hunt], arguments: Sequence[str], before: dict[str, Any]) -> dict[str, Any]:
    """Return the result of some hunts; of bugs that were not hunted, the result ``before``."""
    command = " ".join(["python -m qa.seeded", *arguments])
    here = about_here()
    found = {
        hunt.bug.name: {
            "caught": hunt.caught,
            "seeds": hunt.seeds,
            "seed": hunt.seed,
            "noticed": hunt.noticed,
            "caught_by": list(hunt.caught_by),
            "what": hunt.what,
            # Others may have been hunted at another time.
            **{name: here[name] for name in ("commit", "date")},
        }
        for hunt in hunts
    }
    known = {**before, **found}
    return {
        "command": command.strip(),
        **here,
        "seeds_max": SEEDS_MAX,
        "bugs": {bug.name: known[bug.name] for bug in ALL_BUGS if bug.name in known},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt bugs; returns the exit status: 0, or 1 if one was missed."""
    parser = argparse.ArgumentParser(prog="python -m qa.seeded", description=__doc__)
    parser.add_argument("--bug", action="append", metavar="NAME", help="only bugs whose name contains this")
    parser.add_argument(
        "--mesh",
        action=argparse.BooleanOptionalAction,
        help="only bugs of the mesh, or only the others",
    )
    parser.add_argument(
        "--roles", action=argparse.BooleanOptionalAction, help="only bugs of high availability, or only the others"
    )
    parser.add_argument("--first", type=NATURAL, default=0, metavar="S", help="the first seed (%(default)s)")
    parser.add_argument("--seeds", type=COUNT, default=SEEDS_MAX, metavar="N", help="seeds for each (%(default)s)")
    parser.add_argument("--jobs", type=COUNT, default=os.cpu_count() or 1, metavar="J", help="processes (all cores)")
    add_result_option(parser, FORMAT, "write what was found into")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the result has of this commit already; needs --result"
    )
    options = parser.parse_args(arguments)
    if options.resume and not options.result:
        parser.error("--resume goes on with what is in a result: name it by --result")
    file: ResultFile | None = options.result
    before = file.read()["bugs"] if file is not None else {}
    chosen = [bug for bug in ALL_BUGS if not options.bug or any(part in bug.name for part in options.bug)]
    if options.mesh is not None:
        chosen = [bug for bug in chosen if bug.mesh is options.mesh and not bug.of_roles]
    if options.roles is not None:
        chosen = [bug for bug in chosen if bug.of_roles is options.roles]
    if options.resume:
        commit = about_here()["commit"]
        known = [bug for bug in chosen if before.get(bug.name, {}).get("commit") == commit]
        sys.stdout.write(f"{len(known)} of {len(chosen)} were hunted at {commit} already\n")
        chosen = [bug for bug in chosen if bug not in known]
    hunts: list[Hunt] = []
    for bug in chosen:
        found = hunt(bug, first=options.first, seeds=options.seeds, jobs=options.jobs)
        hunts.append(found)
        verdict = "caught" if found.caught else "MISSED"
        by = f" by {', '.join(found.caught_by)}" if found.caught_by else ""
        sys.stdout.write(f"{verdict} {bug.name}: {found.seeds} seeds{by} {found.what}\n")
        sys.stdout.flush()
        if file is not None:
            # After each of them: a hunt takes hours, and may be broken off.
            said = sys.argv[1:] if arguments is None else list(arguments)
            file.write(result_of(hunts, said, before))
    return 0 if all(found.caught for found in hunts) else 1
