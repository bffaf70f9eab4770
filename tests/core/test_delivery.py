"""Lost messages: clients count them, the server records them, tables and pages show them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer import Feedback, Lossy, Method, TopK, fedavg, simulate
from gossamer.cli import main
from gossamer.core import tree
from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Kept
from gossamer.core.delivery import counted, delivery
from gossamer.core.types import State
from gossamer.engines.run import Result
from gossamer.methods import onebit_cs, perm, perm_two_stage
from gossamer.runs.report import page, tables
from gossamer.runs.report.summary import summarise
from gossamer.testing import tiny_task

METHODS: dict[str, tuple[Method, Kept]] = {
    "change": (onebit_cs(), "last"),
    "signs": (onebit_cs(retain="signs", fresh=False), "last"),
    "accumulate": (onebit_cs(accumulate=True), "all"),
    "feedback": (fedavg(steps=1).with_parts(codec=Feedback(TopK(0.2))), "all"),
    "nothing": (onebit_cs(retain="nothing"), "nothing"),
}


class Slow:
    """A client that lists its lost messages by name."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.waiting: list[int] = []
        self.forgotten: list[int] = []

    def send(self, number: int, arrived: bool) -> tuple[int, int] | None:
        """The counts of lost messages, if this one arrives."""
        if arrived:
            counts = len(self.waiting), len(self.forgotten)
            self.waiting, self.forgotten = [], []
            return counts
        if self.kept == "all":
            self.waiting.append(number)
        if self.kept == "last":
            self.forgotten += self.waiting
            self.waiting = [number]
        return None


@given(st.sampled_from(["nothing", "last", "all"]), st.lists(st.booleans(), max_size=12))
def test_counts_are_those_of_a_client_that_lists_its_messages(kept: Kept, arrivals: list[bool]) -> None:
    slow = Slow(kept)
    state: State = {}
    for number, arrived in enumerate(arrivals):
        before = delivery(state)
        state = tree.unflatten(tree.flatten(counted(state, kept, arrived)))
        counts = slow.send(number, arrived)
        assert counts is None or counts == before
    assert delivery(state) == (len(slow.waiting), len(slow.forgotten))


def run(name: str, rounds: int = 8) -> Result:
    return simulate(METHODS[name][0], tiny_task(4), rounds=rounds, per_round=3, channel=Lossy(0.5), seed=2)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_books_them_in_the_round_that_makes_up_for_them(name: str) -> None:
    result, clients = run(name), [Slow(METHODS[name][1]) for _ in range(4)]
    for record in result.metrics:
        sent = {c: clients[c].send(record["round"], c not in record["lost"]) or (0, 0) for c in record["clients"]}
        found = record.get("delivery", {"retained": [0] * 3, "forgotten": [0] * 3})
        assert list(zip(found["retained"], found["forgotten"], strict=True)) == [sent[c] for c in record["clients"]]
    delivery, lost = result.summary()["delivery"], result.summary()["lost"]
    if name == "nothing":
        assert delivery is None
        return
    assert (sum(delivery["forgotten"]) > 0) == (METHODS[name][1] == "last")
    still = sum(len(client.waiting) + len(client.forgotten) for client in clients)
    assert sum(delivery["retained"]) + sum(delivery["forgotten"]) + still == lost
    assert len(delivery["retained"]) == 4


def test_a_message_that_is_refused_is_compensated_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    read = BoundExchange.read_upload

    def refusing(self: BoundExchange, data: Any, state: Any, clock: Any, *more: Any) -> Any:
        if (clock.round, clock.client) in ((0, 1), (1, 1)):
            raise ValueError("garbage")
        return read(self, data, state, clock, *more)

    monkeypatch.setattr(BoundExchange, "read_upload", refusing)
    metrics = simulate(onebit_cs(), tiny_task(3), rounds=3).metrics
    assert [record.get("delivery") for record in metrics] == [
        None,
        None,
        {"retained": [0, 1, 0], "forgotten": [0, 1, 0]},
    ]
    assert [record["exchanges"][0]["folded"] for record in metrics] == [2, 2, 3]


def test_a_run_that_is_resumed_continues_counting(tmp_path: Path) -> None:
    whole = run("change")
    options: dict[str, Any] = {"per_round": 3, "channel": Lossy(0.5), "seed": 2}

    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(METHODS["change"][0], tiny_task(4), rounds=8, out=tmp_path / "run", callbacks=[stop], **options)
    again = simulate(METHODS["change"][0], tiny_task(4), rounds=8, out=tmp_path / "run", resume=True, **options)
    assert again.summary()["delivery"] == whole.summary()["delivery"]


# Tables and pages.


def test_tables_and_pages_show_delivery() -> None:
    kept, none = run("change"), run("nothing")
    summary = kept.summary()
    compensated, dropped = (sum(counts) for counts in summary["delivery"].values())
    still = summary["lost"] - compensated - dropped
    text = f"{summary['lost']}: {compensated} compensated by a later one, {dropped} dropped"
    text += f", {still} pending" if still else ""
    assert dict(tables.facts(summary))["lost messages"] == text
    assert f"Lost messages: {text}." in page.render("x", kept.about, kept.metrics, tiny_task(4).split, None)
    assert dict(tables.facts(none.summary()))["lost messages"] == f"{none.summary()['lost']}, none of them compensated"
    first, _, mine, theirs = tables.side_by_side(["a", "b"], [summary, none.summary()]).splitlines()
    assert first.split("  ")[-2:] == ["compensated", "dropped"]
    assert mine.split()[-2:] == [str(compensated), str(dropped)]
    assert theirs.split()[-2:] == ["–", "–"]
    perfect = simulate(onebit_cs(), tiny_task(4), rounds=1).summary()
    assert "lost messages" not in dict(tables.facts(perfect))
    assert "compensated" not in tables.side_by_side(["a"], [perfect])


def test_over_radio_links_each_client_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "far.toml"
    fleet.write_text('[[device]]\nname = "far"\nclients = 4\nflops = 1e9\ndistance = 260\ninterference = 5e-8\n')
    words = f"run onebit-cs --data digits --clients 4 --rounds 6 --executor one-by-one --out {tmp_path / 'run'}"
    assert main([*words.split(), "--channel", "wireless", "--fleet", str(fleet)]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    delivery = found["delivery"]
    assert sum(delivery["retained"]) > 0 < sum(delivery["forgotten"])
    assert main(["show", str(tmp_path / "run")]) == 0
    rows = capsys.readouterr().out.partition("client  messages")[2].splitlines()[2:6]
    for client, messages, lost, _, _, compensated, dropped, *_ in (row.split() for row in rows):
        at = int(client)
        assert (int(messages), int(lost)) == (6, found["by_client"]["lost"][at])
        assert (int(compensated), int(dropped)) == (delivery["retained"][at], delivery["forgotten"][at])


# Rounds in which nothing arrived.


@pytest.mark.parametrize("make", [perm, perm_two_stage])
def test_a_round_of_two_exchanges_is_lost_only_if_nothing_arrived_in_either(make: Any) -> None:
    method, counts = make(warmup=1, steps=1, lambda_=1e6), []
    for seed in range(4):
        result = simulate(method, tiny_task(4), rounds=4, channel=Lossy(0.5), seed=seed)
        for record in result.metrics:
            sent, lost = (sum(exchange[kind] for exchange in record["exchanges"]) for kind in ("sent", "lost"))
            folded = sum(exchange["folded"] for exchange in record["exchanges"])
            assert lost == len(record["lost"]) == sent - folded
            whole = summarise(result.about, [record])["empty_rounds"]
            assert whole == (folded == 0)
            by_name = set(record["lost"]) == set(record["clients"])
            counts.append((whole, by_name))
    assert (0, True) in counts, "each client lost something, and something arrived"
    result = simulate(method, tiny_task(4), rounds=3, channel=Lossy(1.0))
    assert result.summary()["empty_rounds"] == 3
