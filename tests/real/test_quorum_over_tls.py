"""A quorum of witnesses over TLS, on real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from meshq import TLS, SecurityError
from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.settings import Acceptor
from tests.env.authorities import Authority

PASSWORD = "for tests only"
ID = b"i" * 16


@pytest.mark.slow
async def test_a_session_and_its_witnesses_speak_over_tls_and_another_authority_is_not_believed(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    side = TLS(certificate=ours.issue(tmp_path / "witness.pem", "127.0.0.1"))
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                QuorumNode(
                    name,
                    data_dir=tmp_path / name,
                    acceptors=[Acceptor("tls://127.0.0.1:0", tls=side)],
                    password=PASSWORD,
                    tick=0.2,
                )
            )
            for name in ("w0", "w1", "w2")
        ]
        urls = [node.urls[0] for node in nodes]

        def quorum(believed: Authority) -> MeshQuorum:
            tls = TLS(authorities=believed.write(tmp_path / "believed.pem"))
            return MeshQuorum(urls, password=PASSWORD, session=4.0, retries=0, connection_timeout=3.0, tls=tls)

        async with quorum(ours).session(ID, b"a" * 16) as session:
            assert await session.acquire()
            assert await session.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
            assert session.held_until > trio.current_time()
        async with quorum(others).session(ID, b"b" * 16) as session:
            with pytest.raises(SecurityError, match="is not trusted"):
                await session.acquire()
