"""The kit of the attacks: what it starts, samples and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import connect
from tests.attacks.kit import Report, Server, serving, usage_of


@pytest.mark.processes
async def test_a_server_has_its_limit_serves_and_keeps_port_and_store_over_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path, descriptors=300, users={"app": "secret"}, tls=True)
    who = {"user": "app", "password": "secret", "tls": server.client_tls}
    async with serving(server) as sampler:
        limit = next(
            line for line in Path(f"/proc/{server.pid}/limits").read_text().splitlines() if "open files" in line
        )
        assert limit.split()[3:5] == ["300", "300"]
        url, pid = server.url, server.pid
        async with connect(url, **who) as client:
            await client.send("q", b"kept")
        server.kill()
        assert not server.running and server.usage().descriptors == 0
        server.start()
        assert (server.url, server.pid != pid) == (url, True)
        async with connect(url, **who) as client:
            assert (await client.queue("q")).ready == 1
        assert server.stop() == 0
    assert sampler.rss_bytes > 10 << 20 and sampler.descriptors >= sampler.first.descriptors > 5
    assert "is stopped" in server.said()
    assert usage_of(pid).rss_bytes == 0


@pytest.mark.processes
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        Server(tmp_path, settings="nonsense = 5").start()


def test_a_report_holds_if_every_bound_does() -> None:
    report = Report("made up")
    assert not report.holds
    report.at_most("memory", 5, 5)
    report.at_least("served", 5, 5)
    report.exactly("lost", 0, 0)
    report.check()
    report.at_most("descriptors", 1_025, 1_024)
    with pytest.raises(AssertionError, match="BROKEN descriptors: 1,025 <= 1,024"):
        report.check()
