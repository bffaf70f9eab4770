"""The wireless channel: losses, energy and time, in records and reports, and the options of the command line."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Bernoulli, ConfigError, Lossy, Options, Perfect, Wireless, fedavg, simulate
from gossamer.cli import main
from gossamer.cli.flags import Flag
from gossamer.cli.run_args import share_fleet
from gossamer.core.random import Key, fold, key
from gossamer.core.specs import parse, spec
from gossamer.core.types import Clock, Flops
from gossamer.engines import Result
from gossamer.engines.inbox import Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.fleet.fleet import PHONES, Device, Fleet, Span
from gossamer.fleet.radio import FADINGS, Density, Link, outage, rate
from gossamer.methods import METHODS
from gossamer.parts.channels import CHANNELS, Channel, Cost
from gossamer.runs.records import read_metrics
from gossamer.runs.report import curves, page, tables
from gossamer.tasks.objective import Objective
from gossamer.testing import check_channel, tiny_task
from helpers.curves import xdata

PHONE = Device("phone", 3, 512_000_000, 8e9)
CAMERA = Device("camera", 2, 64_000_000, 1e8, power=0.02, distance=150.0, frequency=5e8)
CITY = Fleet((PHONE, CAMERA))
SURE = Fleet((replace(PHONE, threshold=0.0), replace(CAMERA, threshold=0.0)))
NEVER = Fleet((replace(PHONE, threshold=1e200),))


def clock(client: int, number: int = 0) -> Clock:
    return Clock(number, 10, client)


def same(one: Result, other: Result) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


# The channel.


@pytest.mark.parametrize("fading", FADINGS)
def test_it_keeps_the_contract_of_channels(fading: Any) -> None:
    check_channel(Wireless(CITY, fading, seed=3))


def test_a_message_takes_its_bits_over_the_rate_lost_or_not() -> None:
    cell, delivery = Wireless(CITY).fit(5, key(1)), set()
    for client in range(5):
        link = CITY.link(client, 5, 0, fold(key(1), "wireless", 0))
        for number in range(20):
            receipt = cell.send(1250, clock(client), fold(key(2), number))
            assert receipt.seconds == pytest.approx(10_000 / rate(link), rel=1e-12)
            assert receipt.joules == pytest.approx(link.power * receipt.seconds, rel=1e-12)
            delivery.add(receipt.delivered)
    assert delivery == {True, False}


@pytest.mark.parametrize("fading", FADINGS)
def test_messages_are_lost_at_the_outage_rate_of_the_link(fading: Any) -> None:
    """Of 1500, within four standard deviations."""
    cell = Wireless(CITY, fading).fit(5, key(1))
    q = outage(CITY.link(0, 5, 0, cell.key, fading))
    lost = sum(not cell.send(100, clock(0), fold(key(3), number)).delivered for number in range(1500))
    assert abs(lost / 1500 - q) < 4 * math.sqrt(q * (1 - q) / 1500) < 0.06


def test_where_devices_are_follows_from_the_run_and_the_seed() -> None:
    def seconds(seed: int, run: Key) -> list[float]:
        cell = Wireless(CITY, seed=seed).fit(5, run)
        return [cell.send(100, clock(client), key(9)).seconds for client in reversed(range(5))]

    assert seconds(0, key(1)) == seconds(0, key(1))
    drawn = {tuple(seconds(*at)) for at in ((0, key(1)), (1, key(1)), (0, key(2)))}
    assert len(drawn) == 3


def test_an_unbound_channel_has_the_number_of_clients_of_the_file() -> None:
    channel, at = Wireless(CITY, seed=2), key(5)
    assert channel.send(100, clock(4), at) == channel.fit(5, key(0)).send(100, clock(4), at)
    assert channel.work(Flops(10, 10), clock(4), at) == channel.fit(5, key(0)).work(Flops(10, 10), clock(4), at)
    with pytest.raises(ConfigError, match="client must be from 0 to 4"):
        channel.send(100, clock(5), at)


def test_computing_takes_the_cycles_of_what_is_held() -> None:
    """kappa C K f^2 (1 - rho), of K = 100 samples with 5e6 operations each, of which 0.4 are pruned."""
    cell, samples, operations, pruned = Wireless(CITY).fit(5, key(0)), 100, 5e6, 0.4
    for client in range(5):
        device = CITY.device(client, 5)
        cycles = operations * device.frequency / device.flops  # of a sample
        flops = Flops(int(samples * operations), int(samples * operations * (1 - pruned)))
        cost = cell.work(flops, clock(client), key(0))
        wanted = device.capacitance * cycles * samples * device.frequency**2 * (1 - pruned)
        assert cost.joules == pytest.approx(wanted, rel=1e-12)
        assert cost.seconds == pytest.approx(cycles * samples * (1 - pruned) / device.frequency, rel=1e-12)


@pytest.mark.parametrize("channel", [Perfect(), Lossy(0.3)])
def test_other_channels_have_no_devices(channel: Channel) -> None:
    assert channel.fit(7, key(0)) is channel
    assert channel.work(Flops(10**9, 10**9), clock(0), key(0)) == Cost(0.0, 0.0)


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError) as refused:
        Wireless(CITY, "rain", -1)  # type: ignore[arg-type]
    assert len(refused.value.mistakes) == 2


# In a run.


def test_where_nothing_is_lost_the_model_is_that_of_the_perfect_channel() -> None:
    task = tiny_task()
    radio, perfect = (simulate(fedavg(), task, rounds=2, channel=channel) for channel in (Wireless(SURE), Perfect()))
    assert same(radio, perfect)
    for mine, theirs in zip(radio.metrics, perfect.metrics, strict=True):
        costs = ("joules", "energy", "airtime", "delay", "by_client", "seconds", "memory_bytes")
        assert {n: v for n, v in mine.items() if n not in costs} == {n: v for n, v in theirs.items() if n not in costs}
        assert mine["joules"] > theirs["joules"] == 0
        assert "by_client" not in theirs


def test_where_everything_is_lost_the_model_stays_and_the_run_reports_it() -> None:
    task = tiny_task()
    result = simulate(fedavg(), task, rounds=2, channel=Wireless(NEVER))
    start = Objective(task, "cpu", key(0)).initial()
    assert all(torch.equal(result.model.state_dict()[name], start[name]) for name in start)
    summary = result.summary()
    assert (summary["empty_rounds"], summary["lost"], summary["failures"]) == (2, 10, 0)
    assert sum(summary["by_client"]["wasted"]) == pytest.approx(summary["energy"]["sending"], rel=1e-5)
    assert summary["energy"]["sending"] > 0, "what is lost costs as much as what arrives"
    assert "in 2 rounds: the model did not change" in tables.closing(summary)


def test_a_round_counts_what_each_client_spends() -> None:
    run = Simulation(fedavg(), tiny_task(), Options(rounds=1, per_round=4, channel=Wireless(CITY)))
    record = run.round(0, None)
    spent, cell = record["by_client"], run.channel
    nbytes = sum(record["bytes_up"].values()) // 4
    for index, client in enumerate(record["clients"]):
        at, own = clock(client)._replace(rounds=1), fold(fold(run.key, "round", 0), "client", client)
        receipt = cell.send(nbytes, at, fold(own, "channel"))
        assert spent["messages"][index] == 1
        assert spent["lost"][index] == (not receipt.delivered) == (client in record["lost"])
        assert spent["wasted"][index] == pytest.approx(0 if receipt.delivered else receipt.joules, rel=1e-5)
        assert spent["joules"][index] > receipt.joules
    assert record["joules"] == pytest.approx(sum(record["energy"].values()))
    assert sum(spent["joules"]) == pytest.approx(record["joules"], rel=1e-5)
    assert record["delay"] == pytest.approx(max(spent["seconds"]), rel=1e-5)
    assert 0 < record["airtime"] < record["delay"]
    device = {client: CITY.device(client, 5) for client in record["clients"]}
    assert record["energy"]["computing"] < max(d.joules(d.seconds(record["flops"])) for d in device.values())


def test_the_same_is_lost_however_clients_are_trained() -> None:
    runs = [
        simulate(fedavg(epochs=1), tiny_task(), rounds=2, channel=Wireless(CITY), executor=executor)
        for executor in ("one-by-one", "stacked")
    ]
    one, other = ([(record["lost"], record["by_client"]) for record in run.metrics] for run in runs)
    assert one == other


def test_what_a_client_does_not_hold_costs_it_no_energy() -> None:
    halves = fedavg().with_parts(view=Bernoulli((0.5,)))
    whole, half = (simulate(m, tiny_task(), rounds=1, channel=Wireless(SURE)).metrics[0] for m in (fedavg(), halves))
    assert half["energy"]["computing"] == pytest.approx(
        whole["energy"]["computing"] * half["useful_flops"] / whole["useful_flops"], rel=0.1
    )
    assert half["useful_flops"] < 0.7 * half["flops"]


def test_every_exchange_of_a_round_counts_and_waits_for_the_slowest() -> None:
    method, costs = METHODS["perm"](warmup=0), []

    class Noting(Simulation):
        def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
            before = {client: ledger.tallies[client].seconds for client in stage.active}
            super().exchange(stage, ledger, inbox)
            costs.append({client: ledger.tallies[client].seconds - before[client] for client in stage.active})

    record = Noting(method, tiny_task(), Options(rounds=1, channel=Wireless(SURE))).round(0, None)
    compared, trained = costs
    assert record["by_client"]["messages"] == [1 + (client in trained) for client in range(5)]
    assert record["delay"] == pytest.approx(max(compared.values()) + max(trained.values()), rel=1e-9)
    assert len(set(compared.values())) == 5, "each device has its own pace"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_over_it(name: str) -> None:
    result = simulate(METHODS[name](), tiny_task(), rounds=1, channel=Wireless(CITY))
    (record,) = result.metrics
    assert record["failures"] == []
    assert (record["energy"]["sending"] > 0) == bool(record["bytes_up"])
    if name == "centralised":  # which no device does
        assert record["joules"] == 0
    else:
        assert record["energy"]["computing"] > 0


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    how: dict[str, Any] = {"rounds": 3, "channel": Wireless(CITY, seed=4)}
    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), tiny_task(), out=tmp_path / "run", callbacks=[stop], **how)
    resumed = simulate(fedavg(), tiny_task(), out=tmp_path / "run", resume=True, **how)
    whole = simulate(fedavg(), tiny_task(), **how)
    assert same(resumed, whole)
    assert [record["lost"] for record in resumed.metrics] == [record["lost"] for record in whole.metrics]


# Tables, curves and pages.


@pytest.fixture(scope="module")
def run() -> Result:
    return simulate(fedavg(), tiny_task(), rounds=3, channel=Wireless(CITY))


def test_a_summary_adds_up_what_each_client_spent(run: Result) -> None:
    summary = run.summary()
    spent = summary["by_client"]
    assert [len(values) for values in spent.values()] == [5] * 5
    assert spent["messages"] == [3] * 5
    assert sum(spent["lost"]) == summary["lost"] > 0
    for name in ("computing", "sending"):
        assert summary["energy"][name] == pytest.approx(sum(record["energy"][name] for record in run.metrics))
    assert summary["delay"] == pytest.approx(sum(record["delay"] for record in run.metrics))
    json.dumps(summary, allow_nan=False)


def test_tables_show_energy_delay_and_outages_by_client(run: Result) -> None:
    summary = run.summary()
    table = tables.full(Path("runs/x"), run.about, run.metrics, "finished")
    facts = dict(tables.facts(summary))
    lost = summary["by_client"]["lost"]
    worst = max(range(5), key=lambda client: lost[client])
    assert f"{100 * sum(lost) / 15:.2f} % of 15 messages" in facts["outages"]
    assert f"to {100 * lost[worst] / 3:.2f} % (client {worst})" in facts["outages"]
    for wanted in ("J computing", "J sending", "J of it for lost messages"):
        assert wanted in facts["energy"]
    joules = summary["by_client"]["joules"]
    assert f"to {max(joules):.4g} (client {joules.index(max(joules))})" in facts["joules per client"]
    rows = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()][:5]
    assert [int(row[0]) for row in rows] == sorted(range(5), key=lambda client: -lost[client])
    assert [row[1:3] for row in rows] == [["3", str(lost[int(row[0])])] for row in rows]


def test_runs_are_compared_by_what_they_spent(run: Result) -> None:
    plain = simulate(fedavg(), tiny_task(), rounds=3)
    head, _, radio, perfect = tables.side_by_side(["a", "b"], [run.summary(), plain.summary()]).splitlines()
    for column in ("computing J", "sending J", "delay", "lost"):
        assert column in head
    assert f"{run.summary()['energy']['sending']:.4g}" in radio
    assert perfect.split()[-4:] == ["–"] * 4
    assert "channel" in tables.differences([run.summary(), plain.summary()])
    assert "sending" not in tables.side_by_side(["b"], [plain.summary()])


def test_curves_and_the_page_show_accuracy_by_energy_and_time(run: Result) -> None:
    plain = simulate(fedavg(), tiny_task(), rounds=3).metrics
    picture = curves.figure(["radio", "perfect"], [run.metrics, plain])
    *_, energy, time = picture.axes
    assert [axes.get_xlabel().partition(";")[0] for axes in (energy, time)] == [
        "energy spent by clients so far (J)",
        "time for computing and sending so far (s)",
    ]
    joules = [record["joules"] for record in run.metrics]
    assert xdata(energy).tolist() == pytest.approx([sum(joules[: n + 1]) for n in range(3)])
    assert xdata(time)[-1] == pytest.approx(run.summary()["delay"])
    assert len(curves.figure(["perfect"], [plain]).axes) == 2
    shown = page.render("x", run.about, run.metrics, tiny_task().split, None)
    for title in ("Accuracy (%) by energy", "Accuracy (%) by time", "computing and sending"):
        assert title in shown


def test_rounds_without_any_arrival_are_counted_for_every_channel() -> None:
    lossy = simulate(fedavg(), tiny_task(), rounds=2, channel=Lossy(1.0), failure_rate=0.3)
    assert lossy.summary()["empty_rounds"] == 2
    assert simulate(fedavg(), tiny_task(), rounds=2, channel=Lossy(0.3)).summary()["empty_rounds"] == 0
    assert simulate(METHODS["local"](), tiny_task(), rounds=1, channel=Wireless(NEVER)).summary()["empty_rounds"] == 0


# Retransmission, downloads, and phones.


def test_a_lost_message_is_sent_again_and_every_attempt_costs() -> None:
    once, thrice = (Wireless(CITY, retries=retries).fit(5, key(1)) for retries in (0, 2))
    attempts: dict[int, set[bool]] = {1: set(), 2: set(), 3: set()}
    for number in range(200):
        one, all_three = (cell.send(1000, Clock(0, 1, 3), fold(key(2), number)) for cell in (once, thrice))
        tries = round(all_three.seconds / one.seconds)
        assert all_three.joules == pytest.approx(tries * one.joules)
        assert one.delivered == (tries == 1), "the first attempt is that of a channel without retries"
        attempts[tries].add(all_three.delivered)
    assert attempts == {1: {True}, 2: {True}, 3: {True, False}}


def test_with_retries_the_outage_is_a_power_of_the_outage() -> None:
    cell, sent = Wireless(CITY, retries=1).fit(5, key(1)), range(2000)
    lost = sum(not cell.send(1000, Clock(0, 1, 3), fold(key(2), number)).delivered for number in sent)
    expected = outage(CITY.link(3, 5, 0, cell.key)) ** 2
    assert lost / len(sent) == pytest.approx(expected, abs=3 * (expected / len(sent)) ** 0.5)


def test_a_download_takes_the_time_of_the_downlink_and_the_power_of_the_receiver() -> None:
    device = Device("phone", 1, None, 1e9, distance=100.0, interference=5e-8, down_bandwidth=2e7, receive_power=0.3)
    cost = Wireless(Fleet((device,))).receive(5000, Clock(0, 1, 0), key(0))
    down = Link(1.0, 100.0, bandwidth=2e7, interference=5e-8)
    assert cost == pytest.approx((40_000 / rate(down), 0.3 * 40_000 / rate(down)))
    assert Wireless(CITY).receive(5000, Clock(0, 1, 0), key(0)) == (0.0, 0.0)
    noisy = replace(device, noise=Density(1e-14))
    assert noisy.downlink(noisy.link(key(0))).disturbance == pytest.approx(5e-8 + 2e-7)  # type: ignore[union-attr]


def test_a_run_counts_what_its_downloads_take() -> None:
    fleet = Fleet(tuple(replace(device, down_bandwidth=2e7, receive_power=0.5) for device in CITY.devices))
    free, paid = (simulate(fedavg(), tiny_task(), rounds=2, channel=Wireless(f)).metrics[-1] for f in (CITY, fleet))
    cell = Wireless(fleet).fit(5, key(0))
    each = sum(paid["bytes_down"].values()) // 5
    costs = [cell.receive(each, Clock(1, 2, client), key(0)) for client in range(5)]
    assert paid["energy"]["receiving"] == pytest.approx(sum(cost.joules for cost in costs))
    assert paid["joules"] - free["joules"] == pytest.approx(paid["energy"]["receiving"])
    assert paid["delay"] > free["delay"]
    assert (free["energy"].keys(), paid["loss"]) == ({"computing", "sending"}, free["loss"])
    pooled = simulate(METHODS["centralised"](), tiny_task(), rounds=1, channel=Wireless(fleet))
    assert pooled.metrics[0]["joules"] == 0


def test_without_a_fleet_devices_are_phones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go("run fedavg --epochs 1 --channel wireless:seed=1 --out run") == 0
    assert "outages" in capsys.readouterr().out
    recorded = json.loads(Path("run/run.json").read_text())["options"]["channel"]
    assert (recorded, parse(recorded, CHANNELS, "channel")) == ("wireless:seed=1", Wireless(seed=1))
    assert parse("wireless:phones", CHANNELS, "channel") == Wireless() == Wireless(PHONES)
    (phone,) = PHONES.devices
    assert (phone.flops, phone.power) == (8e9, 0.01)
    assert phone.joules(1.0) == pytest.approx(1.0)


# The command line.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    CITY.write("city.toml")
    Path("tasks.py").write_text("from gossamer.testing import tiny_task\n\n\ndef task():\n    return tiny_task()\n")
    return tmp_path


def go(words: str) -> int:
    return main(f"{words} --task tasks.py:task --rounds 2 --executor one-by-one".split())


def test_a_spec_is_read_and_written_back(folder: Path) -> None:
    for text in ("wireless:city.toml", "wireless:city.toml,none,seed=3", "wireless:fading=none,fleet=city.toml"):
        channel = parse(text, CHANNELS, "channel")
        assert isinstance(channel, Wireless)
        assert channel.fleet == CITY
        assert parse(spec(channel, CHANNELS), CHANNELS, "channel") == channel
        options = Options(channel=channel)
        assert Options.read(options.describe()) == options


@pytest.mark.parametrize(
    "name", ['a"b,c=d.toml', *(pytest.param(name, marks=pytest.mark.slow) for name in ("a,b.toml", "a=b.toml"))]
)
def test_a_fleet_may_be_called_what_it_likes(folder: Path, name: str) -> None:
    CITY.write(name)
    words = ["run", "fedavg", "--epochs", "1", "--channel", "wireless:fading=none,seed=3", "--fleet", name]
    assert main([*words, "--task", "tasks.py:task", "--rounds", "1", "--out", "run"]) == 0
    recorded = json.loads(Path("run/run.json").read_text())["options"]["channel"]
    channel = parse(recorded, CHANNELS, "channel")
    assert isinstance(channel, Wireless)
    assert (channel.fleet, channel.fading, channel.seed) == (CITY, "none", 3)
    assert main(["resume", "run"]) == 0


@pytest.mark.parametrize("method", ["fedavg --epochs 1", "heterofl --epochs 1 --labels all", "perm --probe 8"])
def test_one_flag_serves_the_channel_and_the_method(
    folder: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    assert go(f"run {method} --channel wireless --fleet city.toml --out run") == 0
    assert "outages" in capsys.readouterr().out
    about = json.loads(Path("run/run.json").read_text())
    assert about["options"]["channel"].startswith(f"wireless:fleet={folder / 'city.toml'}@")
    assert ("fleet" in about["request"]["given"]) == (not method.startswith("fedavg"))
    assert read_metrics(Path("run"))[0]["energy"]["sending"] > 0


NEEDS = {
    "perm": ("--probe 8", "--probe N"),
    "perm-two-stage": ("--probe 8", "--probe N"),
    "submodel-random --by coordinate": ("", "--by coordinate"),
    "submodel-rolling --by coordinate": ("", "--by coordinate"),
    "heterofl --by coordinate": ("", "--by coordinate"),
    "fedrolex --by coordinate": ("", "--by coordinate"),
    "heterofl --drawn": ("", "drawn"),
    "fedrolex --capacities 1/16": ("", "--capacities has no effect with --fleet"),
    "perm --probe 8 --capacities 1,1/2": ("", "--capacities has no effect with --fleet"),
}
"""Methods that refuse a fleet for channel and method at once, a flag that makes them accept it, and the message."""


OFTEN = ("fedavg", "fedspa", "perm", "onebit-cs", "heterofl", "fedmrn", "scaffold", "dp-fedavg", "local", "centralised")
"""Methods that are tested by default; all others are slow."""


@pytest.mark.parametrize(
    "method",
    [
        *(name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in METHODS),
        *(name for name in NEEDS if name not in METHODS),
    ],
)
def test_every_method_runs_over_radio_links_or_names_the_flag_that_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    words = f"run {method} {'--labels all' if method.startswith(('heterofl', 'fedrolex')) else ''}"
    more, reason = NEEDS.get(method, ("", ""))
    if reason:
        assert go(f"{words} --channel wireless --fleet city.toml --out refused") == 2
        printed = capsys.readouterr().err
        assert reason in printed
        assert "for links alone name the fleet in the channel: --channel wireless:FILE" in printed
        assert go(f"{words} --channel wireless:city.toml --out alone") == 0
        assert len(read_metrics(Path("alone"))) == 2
    if not reason or more:
        assert go(f"{words} {more} --channel wireless --fleet city.toml --out both") == 0
        assert len(read_metrics(Path("both"))) == 2


def test_a_run_is_resumed_from_anywhere_unless_its_fleet_was_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = Simulation.round

    def stopping(self: Simulation, number: int, folder: Any, callbacks: Any) -> Any:
        if number == 1:
            raise KeyboardInterrupt
        return save(self, number, folder, callbacks)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "round", stopping)
        assert go("run heterofl --labels all --channel wireless --fleet city.toml --out run") == 130
    whole = Path("city.toml").read_text()
    Path("city.toml").write_text(whole.replace("camera", "webcam"))
    assert main(["resume", "run"]) != 0
    assert "city.toml was changed since the run was started" in capsys.readouterr().err
    Path("city.toml").write_text(whole)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["resume", "../run"]) == 0
    assert len(read_metrics(folder / "run")) == 2


MISTAKES = [
    ("--channel wireless:retries=-1", "retries must not be negative"),
    (
        "--fleet city.toml",
        "--fleet has no effect here: add --schedule, --channel wireless or --channel fleet, or leave it out",
    ),
    ("--channel lossy:0.1 --fleet city.toml", "--fleet has no effect here"),
    ("--channel wireless:city.toml --fleet city.toml", "--channel and --fleet both name a fleet: choose one"),
    ("--channel wireless --fleet none.toml", "none.toml: cannot be read"),
    ("--channel wireless:fading=rain --fleet city.toml", "fading must be one of amplitude, none, power, got 'rain'"),
    ("--channel wireless --fleet wrong.toml", "wrong.toml: device 1: power must be watts"),
]


@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_mistakes_are_reported_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    Path("wrong.toml").write_text("[[device]]\npower = 'much'\nclients = 0")
    assert go(f"run fedavg {words} --out run") == 2
    printed = capsys.readouterr().err
    assert printed.count(reason) == 1
    if "wrong.toml" in words:
        assert printed.count("wrong.toml: device 1: ") == 4, "every mistake of the file"
    assert not Path("run").exists()


def test_a_method_and_its_channel_may_have_different_fleets() -> None:
    own = [Flag("fleet", Fleet, None, "", "FILE")]
    given = {"channel": "wireless:a.toml", "fleet": "b.toml"}
    assert share_fleet(given, own) == []
    assert given == {"channel": "wireless:a.toml", "fleet": "b.toml"}
    alone = {"fleet": "b.toml"}
    assert share_fleet(alone, own) == []
    assert alone == {"fleet": "b.toml"}


def test_a_method_that_fits_the_memory_refuses_a_fleet_without_memory_sizes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Fleet((Device("tag", 1, None, 1e6, distance=Span(1.0, 9.0)),)).write("tags.toml")
    assert go("run heterofl --channel wireless --fleet tags.toml --out run") == 2
    assert "tag: how much of the model fits is not known without its memory" in capsys.readouterr().err
    assert go("run heterofl --labels all --channel wireless:tags.toml --capacities 1,1/2 --out run") == 0


def test_show_and_compare_report_energy_and_delay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands: list[Callable[[], int]] = [
        lambda: go("run fedavg --channel wireless --fleet city.toml --out radio"),
        lambda: go("run fedavg --out perfect"),
        lambda: main(["show", "radio"]),
        lambda: main(["show", "radio", "--json"]),
        lambda: main(["compare", "radio", "perfect"]),
    ]
    printed = []
    for command in commands:
        assert command() == 0
        printed.append(capsys.readouterr().out)
    assert "outages" in printed[2]
    assert len(json.loads(printed[3])["by_client"]["joules"]) == 5
    assert "sending J" in printed[4]
    assert "these runs also differ in: channel" in printed[4]
