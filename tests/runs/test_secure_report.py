"""The report on secure aggregation: sums, dropouts by phase, clients that lied, and what one client can add."""

from gossamer.runs.report.part_reports import SecureReport

PHASES = {"keys": 8, "shares": 8, "check": 7, "train": 6, "consent": 6, "unmask": 6}


def test_a_summary_has_sums_dropouts_and_liars() -> None:
    lied = "lied: its shares were unreadable or wrong for 7 of 7 neighbours"
    first = {"asked": 8, **PHASES, "summed": 6, "reach": 15.0, "liars": {"3": lied}}
    second = {"asked": 7, **dict.fromkeys(PHASES, 7), "summed": 7, "reach": 7.0}
    records = [{"round": 1, "figures": {"secure": first}}, {"round": 2, "figures": {"secure": second}}]
    report = SecureReport("secure")
    summary = report.summary(records, 8)
    assert summary is not None
    assert summary["lost"] == {"keys": 0, "shares": 0, "check": 1, "train": 1, "consent": 0, "unmask": 0}
    rows = dict(report.rows(summary))
    assert rows["clients lost"] == "1 in check, 1 in train"
    assert rows["clients that lied"] == f"client 3: {lied}"
    assert rows["what one client can add"] == "up to 15 times its limit"
    assert rows["the server saw"] == "2 sums of 6 to 7 clients each, and no single update"
