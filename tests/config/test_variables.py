"""The variables of the environment that stand for passwords in a file that was written."""

from __future__ import annotations

from meshq import Broker, Security
from meshq.config import dump_config


def test_the_variable_of_a_password_stays_that_of_its_key_when_others_come_and_go() -> None:
    def variables(*users: str) -> dict[str, str]:
        lines = dump_config(Broker("a", data_dir=None, security=Security(users=dict.fromkeys(users, "x")))).splitlines()
        named = (line.removeprefix("# ").partition(": ") for line in lines[1 : lines.index("")])
        return {key: name for name, _, key in named}

    users = ("a-b", "a_b", "A.B", "日本")
    every = variables(*users)
    assert len(set(every.values())) == len(users) == len(every) and "security.users.a_b" in every
    assert every["security.users.a_b"] == "MESHQ_SECURITY_USERS_A_B" and variables(*reversed(users)) == every
    for user in users:
        assert variables(user).items() <= every.items()
