"""Make mutants of the product, one after the other, and see which of them its tests do not notice.

Each mutant is a copy of the product with one small change.  A test that fails, or takes ten times as long, has noticed
it; what none of the short tests of its unit notices that run the changed line, has survived, and is listed with its
file and line.  Mutants are drawn by a seed, and the same of them for the same texts.  ``--resume`` goes on, unit by
unit, where a run was broken off, and keeps what it knows of files that have not changed; ``--survivors`` plays those
anew that have survived.  A result never has fewer mutants of a unit than before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from qa.arguments import COUNT, NATURAL
from qa.mutants import trial
from qa.mutants.results import FORMAT, UnitResults
from qa.mutants.units import ROOT, UNITS, Drawn, digests_of, drawn
from qa.results import ResultError, ResultFile, add_result_option

#: Mutants of each unit.
NUMBER: Final = 70


def play(unit: str, mutants: Iterable[Drawn], results: UnitResults) -> None:
    """Play those mutants of a unit whose results are not known yet."""
    left = [one for one in mutants if str(one) not in results.found["mutants"]]
    if not left:
        return
    with trial.copy_of_the_product() as folder:
        covered = trial.cover(folder, UNITS[unit].tests, sorted(digests_of(unit)))
        for one in left:
            names = covered.of(one.path, one.mutant.line)
            text = (ROOT / one.path).read_text(encoding="utf-8")
            (folder / one.path).write_text(one.mutant.applied(text), encoding="utf-8")
            noticed = trial.noticed(folder, names)
            (folder / one.path).write_text(text, encoding="utf-8")
            if not noticed:
                sys.stdout.write(f"survived {len(names)} tests: {one}\n")
                sys.stdout.flush()
            results.played(one, noticed=noticed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qa.mutants", description=__doc__)
    parser.add_argument("--unit", action="append", choices=list(UNITS), help="only this one; may be given again")
    parser.add_argument(
        "--number", type=COUNT, metavar="N", help=f"mutants of each unit ({NUMBER}, or as many as the result has)"
    )
    parser.add_argument("--seed", type=NATURAL, default=0, metavar="N", help="which are drawn (%(default)s)")
    add_result_option(parser, FORMAT, "write")
    parser.add_argument("--resume", action="store_true", help="go on with the results that are there")
    parser.add_argument("--survivors", action="store_true", help="with --resume: play those anew that have survived")
    options = parser.parse_args(arguments)
    if options.resume and not options.result:
        parser.error("--resume goes on with what is in a result: name it by --result")
    file: ResultFile | None = options.result
    every = [UnitResults(file, unit, options.seed, digests_of(unit)) for unit in options.unit or UNITS]
    try:
        numbers = [results.number(options.number, NUMBER) for results in every]
    except ResultError as error:
        parser.error(str(error))
    for results, number in zip(every, numbers, strict=True):
        unit = results.unit
        mutants = drawn(unit, number, options.seed)
        if options.resume:
            results.resume(mutants, survivors=options.survivors)
        play(unit, mutants, results)
        results.explain(mutants)
        sys.stdout.write(f"{results}\n")
        for name, survivor in results.found["survivors"].items():
            sys.stdout.write(f"  {name}\n    {survivor['line']}\n    {survivor['why'] or 'no test, and no reason'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
