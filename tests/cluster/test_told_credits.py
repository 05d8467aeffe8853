"""What a link takes of the other node's word about its branches."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.client.session._address_credits import ToldCredits
from meshq.errors import RemoteProtocolError
from meshq.wire import BranchChange, Frame, FrameType


def test_no_more_branches_are_taken_than_a_link_may_have() -> None:
    """Each has a list of its own here, and a node that names more does not keep to the protocol."""
    told = ToldCredits()

    def branch(number: int) -> None:
        told.branch(
            Frame(FrameType.BRANCH, channel=1, first=number, header=BranchChange(address=f"a{number}").encode())
        )

    for number in range(limits.LINK_BRANCHES_MAX):
        branch(number)
    with pytest.raises(RemoteProtocolError, match="branches of one link"):
        branch(limits.LINK_BRANCHES_MAX)
    assert len(told.marks) == limits.LINK_BRANCHES_MAX
    told.forget()
    branch(1)
    assert told.marks == {"a1": 1}
