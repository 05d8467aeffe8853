"""Under TLS a server knows which host name its client asked for (SNI)."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest
import trio

from meshq.env import OpenSslTls
from meshq.settings import TLS
from meshq.testing import MemoryNetwork
from meshq.testing.conformance._network import closing
from tests.env.test_tls import HOST, Files, TlsNetwork, TlsSides, context, memory_sides


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_a_server_knows_which_host_name_its_client_asked_for(files: Files) -> None:
    async with memory_sides(files) as sides:
        near, far = await sides.pair()
        async with closing(near, far):
            assert (near.server_name, far.server_name) == ("", HOST)


async def test_who_asks_for_an_address_names_no_host_and_a_program_may_choose_by_the_name_itself(files: Files) -> None:
    seen: list[str | None] = []
    given = context(ssl.PROTOCOL_TLS_SERVER, certificate=files.broker)
    given.sni_callback = lambda tls, name, context: seen.append(name)
    tls = OpenSslTls()
    client = tls.client(TLS(authorities=files.ours))
    # Two acceptors may share a context.
    for server in (tls.server(given), tls.server(given)):
        seen.clear()
        for host, name in ((HOST, HOST), ("127.0.0.1", None)):
            async with trio.open_nursery() as nursery:
                fabric = MemoryNetwork(random.Random(0))
                nursery.start_soon(fabric.run)
                dialing = TlsNetwork(fabric.host("client"), client, host)
                near, far = await TlsSides(dialing, TlsNetwork(fabric.host("server"), server), "server").pair()
                async with closing(near, far):
                    assert far.server_name == (name or "")
                nursery.cancel_scope.cancel()
        assert seen == [HOST, None]
