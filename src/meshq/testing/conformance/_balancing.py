"""The conformance suite for ``abc.BalancerPolicy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from meshq.abc import BalancerPolicy, BalancerTarget
from meshq.errors import SettingsError
from meshq.testing.conformance._assertions import NonconformanceError, expect, expect_equal

_NODES: Final = tuple(
    BalancerTarget(
        url=f"tcp://node-{number}:61616",
        node_id=f"{number:032x}" if number % 2 else "",
        local=number == 3,
        connections=number // 2,
    )
    for number in range(7)
)
_KEYS: Final = ("", "shop", "another")
#: How often a policy chooses among the same targets.
_CHOICES: Final = 20
_CHANCE: Final = 0x123456789ABCDEF


def check_policy(make_policy: Callable[[], BalancerPolicy]) -> None:
    """Check that a policy of balancing keeps the contract of ``meshq.BalancerPolicy``.

    ``make_policy`` is called once for each check of ``POLICY_CHECKS``.

    Raises:
        NonconformanceError: the policy breaks a promise.
        SettingsError: ``make_policy`` is no class, and no function that makes a policy.
    """
    for check in POLICY_CHECKS:
        policy: object = make_policy() if callable(make_policy) else None
        if not isinstance(policy, BalancerPolicy):
            raise SettingsError(
                "make_policy", make_policy, "a subclass of BalancerPolicy, or what makes an object of one"
            )
        check(policy)


def _lists() -> list[tuple[BalancerTarget, ...]]:
    """Return lists that grow, shrink and turn round, as nodes come and go."""
    growing = [_NODES[:count] for count in range(len(_NODES) + 1)]
    return [*growing, *(_NODES[::-1][:count] for count in range(len(_NODES), -1, -1)), _NODES[2:5], _NODES[::3]]


def _choices(policy: BalancerPolicy) -> list[BalancerTarget | None]:
    """Return the choices of a policy among lists that change, and keys that change."""
    return [_choose(policy, given, _KEYS[number % len(_KEYS)]) for given in _lists() for number in range(_CHOICES)]


def _choose(policy: BalancerPolicy, given: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
    try:
        chosen: object = policy.select(given, key)
    except Exception as error:
        raise NonconformanceError(f"a policy chooses among {len(given)} targets: it has raised {error!r}") from error
    if chosen is None:
        return None
    expect(
        isinstance(chosen, BalancerTarget) and chosen in given,
        "a policy chooses one of the targets that it was given, or None",
    )
    assert isinstance(chosen, BalancerTarget)
    return chosen


def _begun(policy: BalancerPolicy, chance: int = _CHANCE) -> BalancerPolicy:
    made: object = policy.begin(chance)
    expect(isinstance(made, BalancerPolicy), "what begins is a policy")
    assert isinstance(made, BalancerPolicy)
    return made


def _a_choice_is_one_of_the_targets(policy: BalancerPolicy) -> None:
    _choices(policy)
    _choices(_begun(policy))


def _of_no_targets_none_is_chosen(policy: BalancerPolicy) -> None:
    for one in (policy, _begun(policy)):
        for given in ((), _NODES, ()):
            chosen = _choose(one, given, "")
            expect(bool(given) or chosen is None, "of no targets none is chosen")


def _the_list_stays_as_it_is(policy: BalancerPolicy) -> None:
    for given in _lists():
        mine = list(given)
        _choose(policy, mine, "")
        expect_equal(tuple(mine), given, "the list that was given stays as it is")


def _copies_share_no_state(policy: BalancerPolicy) -> None:
    expected = _choices(_begun(policy))
    one, other = _begun(policy), _begun(policy)
    _choices(other)
    expect_equal(_choices(one), expected, "a copy chooses as if no other copy did")


def _every_chance_will_do(policy: BalancerPolicy) -> None:
    for chance in (0, 1, 2**64 - 1):
        _choices(_begun(policy, chance))


#: Every check of the suite, each of which examines a policy of its own.
POLICY_CHECKS: Final[tuple[Callable[[BalancerPolicy], None], ...]] = (
    _a_choice_is_one_of_the_targets,
    _of_no_targets_none_is_chosen,
    _the_list_stays_as_it_is,
    _copies_share_no_state,
    _every_chance_will_do,
)
