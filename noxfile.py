"""What CI checks, one session each, in environments of their own: ``nox``, ``nox -s types``, ``nox -s tests -- -x``.

``nox --list`` names the sessions.  ``.ci/run`` does the same for a submission, and more.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True
#: The tiers of CONTRIBUTING.md beyond the short one.
TIERS = ["rules", "slow", "examples", "matrix", "exhaustive", "seeded_bugs", "seeds", "processes", "spark", "demo"]
#: The tiers in which every test keeps all cores busy.
ALONE = {"seeds", "demo"}


def install(session: nox.Session, extras: str) -> None:
    """Install the project with extras, in the versions that it was last tested with."""
    session.install("-c", "constraints.txt", "-e", f".[{extras}]")


@nox.session
def lint(session: nox.Session) -> None:
    """Linter and formatter."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Types of the package and of qa."""
    install(session, "test,lint,docs")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The short tier."""
    install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
@nox.parametrize("name", TIERS, ids=TIERS)
def tier(session: nox.Session, name: str) -> None:
    """One of the longer tiers."""
    install(session, "test-all,spark" if name == "spark" else "test-all")
    spread = ["-n0"] if name in ALONE else []
    session.run("python", "-m", "pytest", "-m", name, *spread, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, warnings being errors, and what the next release would say."""
    install(session, "docs")
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")
    session.run("towncrier", "build", "--draft", "--version", "0")
