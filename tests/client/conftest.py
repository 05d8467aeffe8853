"""What the client's tests share."""

from __future__ import annotations

import pytest

from tests.client._server import FakeNode


@pytest.fixture
def node() -> FakeNode:
    """A node at tcp://127.0.0.1:1 and inproc://n."""
    return FakeNode()
