"""Spark against a cluster of two nodes, and against one that asks who is there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import TLS, Acceptor, ClusterConnection, Permissions, Security
from meshq.blocking import Broker, connect
from meshq.spark import DrainReport, drain
from tests.env.authorities import Authority
from tests.real.spark.kit import Job, job, reads_streams, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]


def cluster(known: list[str]) -> ClusterConnection:
    """A connection to the nodes that are known."""
    return ClusterConnection("mesh", static_connectors=known, user="mesh", password="x", retry_interval=0.05)


def test_the_nodes_of_a_cluster_are_read_together_and_one_has_the_sink(spark: Any, tmp_path: Path) -> None:
    acceptors = ["tcp://127.0.0.1:0?insecure=true"]
    with Broker("a", data_dir=None, acceptors=acceptors, services=[cluster([])], queues=["orders"]) as first:
        other = Broker("b", data_dir=None, acceptors=acceptors, services=[cluster([first.urls[0]])], queues=["orders"])
        with other as second, connect(first.urls[0], use_topology=False) as one:
            second.cluster("mesh").wait_for(nodes=2, timeout=10)
            first.cluster("mesh").wait_for(nodes=2, timeout=10)
            with connect(second.urls[0], use_topology=False) as two:
                # Each node keeps what it was sent: nothing is forwarded to where no consumer is.
                one.send_many("orders", texts(range(100)))
                two.send_many("orders", texts(range(100, 150)))
                work = Job(spark, first.urls[0], one)
                work.run(work.stream("orders").select("value"), tmp_path / "checkpoint", topic="copy")
                work.check_nothing_is_left()
                assert sorted([len(one.sinks()), len(two.sinks())]) == [0, 1]
                got = [body for client in (one, two) for body in attrs.evolve(work, client=client).bodies("copy")]
                assert sorted(map(int, got)) == list(range(150))
                assert [one.queue("orders").ready, two.queue("orders").ready] == [0, 0]
                assert [len(client.cursors()) for client in (one, two)] == [1, 1]


SECURITY = Security(
    users={"app": "secret", "root": "canary"},
    roles={"app": {"jobs"}, "root": {"admins"}},
    permissions={
        "#": Permissions(**{name: {"jobs"} for name in ("send", "consume", "browse", "create")}, manage={"admins"})
    },
)


def written(folder: Path, authority: Authority) -> tuple[TLS, dict[str, str]]:
    """The TLS of a client on this machine; and options with bare names, of files that Spark brings to its workers."""
    issued = authority.made.issue_cert("app")
    authority.write(folder / "ours.pem")
    (folder / "client.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(folder / "client.key"))
    (folder / "password").write_text("secret\n")
    names = {"authorities": "ours.pem", "certificate": "client.pem", "key": "client.key"}
    tls = TLS(**{name: folder / file for name, file in names.items()})
    options = {f"tls.{name}": file for name, file in names.items()} | {"user": "app", "passwordFile": "password"}
    return tls, options


def test_a_queue_is_drained_over_tls_by_a_user_with_files_that_spark_brings_and_others_are_refused(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority("ours")
    tls, options = written(tmp_path, authority)
    for file in ("ours.pem", "client.pem", "client.key", "password"):
        spark.sparkContext.addFile(str(tmp_path / file))
    broker = authority.issue(tmp_path / "broker.pem", "127.0.0.1")
    theirs = TLS(certificate=broker, authorities=tls.authorities, client_certificates="required")
    login = {"user": "root", "password": "canary", "tls": tls}
    with job(
        spark, security=SECURITY, login=login, queues=["orders"], acceptor=Acceptor("tls://127.0.0.1:0", tls=theirs)
    ) as work:
        assert work.url.startswith("tls://")
        with connect(work.url, user="app", password="secret", tls=tls) as app:
            app.send_many("orders", texts(range(300)))
        seen: list[int] = []

        def take(frame: Any, batch: int) -> None:
            seen.extend(int(bytes(row.value)) for row in frame.select("value").collect())

        report = drain(
            spark,
            url=work.url,
            queue="orders",
            sink=take,
            checkpoint=str(tmp_path / "checkpoint"),
            options=options | {"maxOffsetsPerTrigger": "200"},
            timeout=math.inf,
        )
        assert sorted(seen) == list(range(300))
        assert isinstance(report, DrainReport) and (report.rows, report.batches) == (300, 2) and report.seconds > 0
        assert work.client.cursors() == [] and work.client.queue("orders").ready == 0
        # A write by the same files; a user with a wrong password, and a broker whose authority nobody believes.
        work.save(spark.range(3).selectExpr("cast(id as string) as value"), topic="copy", **dotted(options))
        work.check_nothing_is_left()
        assert work.client.queue("copy").ready == 3
        certificates = {name: file for name, file in options.items() if name.startswith("tls.")}
        frame = work.read("orders", user="app", password="wrong-canary", **dotted(certificates))
        frame.explain(mode="extended")
        with pytest.raises(Exception, match=r"(?s)SecurityError") as caught:
            frame.count()
        assert "wrong-canary" not in str(caught.value) + capsys.readouterr().out
        with pytest.raises(Exception, match=r"(?s)SecurityError.*certificate of .* is not trusted"):
            work.read("orders", user="app", passwordFile="password").count()


def dotted(options: dict[str, str]) -> dict[str, str]:
    """Options as keywords of a job, which have no dots."""
    return {name.replace(".", "__"): value for name, value in options.items()}
