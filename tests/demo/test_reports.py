"""What the processes say to each other arrives as it was said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshq.demo import _report_format as report

BATCHES = st.integers(0, 5).flatmap(
    lambda count: st.builds(
        report.Delivered,
        batch=st.integers(0, 2**40),
        at_ns=st.integers(0, 2**62),
        keys=st.lists(st.binary(max_size=30), min_size=count, max_size=count),
        carriers=st.lists(st.text(max_size=3), min_size=count, max_size=count),
        delays=st.lists(st.none() | st.integers(-100, 2_000), min_size=count, max_size=count),
        flags=st.binary(min_size=count, max_size=count),
        node=st.text(max_size=10),
    )
)
REPORTS = st.one_of(
    BATCHES,
    st.builds(report.Ready, st.text(max_size=20), st.text(max_size=20)),
    st.builds(report.Progress, st.integers(0, 400_000), st.integers(0, 400_000), st.booleans()),
    st.builds(report.Settled, st.integers(0, 400_000), st.binary(max_size=300)),
    st.builds(report.Connection, st.booleans(), st.booleans(), st.text(max_size=10)),
    st.builds(report.Prepared, st.integers(0, 400_000)),
    st.builds(report.Decided, st.booleans()),
    st.builds(report.Prepare, st.text(max_size=20), st.integers(0, 400_000)),
    st.builds(report.SendPages, st.integers(0, 20), st.integers(0, 400_000)),
    st.builds(report.Decide, st.text(max_size=20)),
    st.builds(report.MoveTo, st.text(max_size=20)),
    st.builds(
        report.Left,
        target=st.text(max_size=10),
        **dict.fromkeys(("held", "moved", "prepared", "large", "left"), st.integers(0, 400_000)),
    ),
    st.builds(report.Connect, st.text(max_size=20)),
    st.builds(report.Limit, st.integers(0, 400_000)),
    st.builds(report.AckQuota, st.integers(-1, 5)),
    st.builds(report.AwaitMesh, st.integers(1, 5), st.integers(1, 5)),
    st.builds(
        report.Numbers,
        *[st.integers(0, 400_000)] * 3,
        st.dictionaries(st.text(max_size=10), st.integers(0, 400_000), max_size=4),
        st.integers(0, 400_000),
    ),
    *(st.just(kind()) for kind in (report.Holding, report.Acknowledging, report.Idle, report.End, report.LeaveForGood)),
    *(
        st.just(kind())
        for kind in (
            report.PortTaken,
            report.MeshReady,
            report.AskNumbers,
            report.Freeze,
            report.Frozen,
            report.LeaveForGood,
        )
    ),
)


@given(reports=st.lists(REPORTS, max_size=5), size=st.integers(1, 50))
def test_reports_arrive_whole_however_the_bytes_are_cut(reports: list[report.Report], size: int) -> None:
    data = b"".join(map(report.pack, reports))
    reader = report.ReportReader()
    heard = [said for start in range(0, len(data), size) for said in reader.feed(data[start : start + size])]
    assert heard == reports
