"""``gossamer privacy``, and the flags of differential privacy: the noise follows from the budget and is recorded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import RoundRobin, Uniform, ditto, fedavg, fedpm, fedspa, local, perm, private, scaffold, sub_fedavg
from gossamer.cli import main
from gossamer.cli.run import too_noisy
from gossamer.core.errors import ConfigError
from gossamer.core.method import Method
from gossamer.core.privacy import Participation
from gossamer.methods.private import MODES
from gossamer.parts.codecs import DiscreteGaussian
from gossamer.parts.privacy.accounting import gaussian
from gossamer.parts.samplers.draws import Poisson
from gossamer.parts.secure import SecAgg
from gossamer.runs.records import read_about, read_metrics
from gossamer.testing import tiny_task
from helpers.noisy import NoisyMean, noisy

SIZE = ["--clients", "10000", "--per-round", "100", "--rounds", "500"]


@pytest.fixture(autouse=True)
def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, "central", noisy)


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["privacy", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_shows_the_noise_of_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown([*SIZE, "--epsilon", "4"], capsys)
    noise = found["noise_multiplier"]
    assert noise["PLD"] == 0.648
    assert noise["PLD"] < noise["RDP"]
    made = gaussian(0.648, Participation(10_000, 100, "poisson", 500))
    assert found["epsilon"]["PLD"] == {str(rounds): made.epsilon(rounds, 1e4**-1.1) for rounds in (50, 250, 500)}
    assert (found["unit"], found["relation"], found["delta"]) == ("client", "add-remove", 1e4**-1.1)
    assert main(["privacy", *SIZE, "--epsilon", "4"]) == 0
    text = capsys.readouterr().out
    assert "0.648 times the clipping norm, by PLD (RDP would take 0.694)" in text
    assert "after 500 rounds" in text


def test_the_command_shows_the_epsilon_of_some_noise(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown([*SIZE, "--noise-multiplier", "2", "--delta", "1e-5", "--sampling", "fixed"], capsys)
    assert found["relation"] == "replace-one"
    assert found["noise_multiplier"] == {"RDP": 2.0}
    assert found["epsilon"]["RDP"]["500"] == gaussian(2.0, Participation(10_000, 100, "fixed", 500)).epsilon(500, 1e-5)
    local_ = shown([*SIZE, "--noise-multiplier", "40", "--dp", "local"], capsys)
    assert (local_["relation"], local_["protects_from"]) == ("zero-out", "everybody, the server too")
    example = ["--dp", "example", "--samples", "600", "--batch", "30", "--steps", "20"]
    assert shown([*SIZE, "--noise-multiplier", "1", *example], capsys)["unit"] == "example"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--clients", "10", "--per-round", "20", "--rounds", "5", "--epsilon", "1"], "there are only 10 clients"),
        (["--clients", "10", "--rounds", "5"], "give --epsilon for the noise"),
        (["--clients", "10", "--rounds", "5", "--epsilon", "1", "--noise-multiplier", "1"], "both given"),
        (["--clients", "10", "--rounds", "0", "--epsilon", "1"], "--rounds must be at least 1, got 0"),
        (["--clients", "10", "--rounds", "5", "--epsilon", "x"], "--epsilon must be a number, got 'x'"),
        (["--clients", "10", "--rounds", "5", "--epsilon", "-1"], "epsilon must be a positive number, got -1.0"),
        (["--clients", "1000", "--rounds", "9999", "--epsilon", "1e-4"], "cannot be met in 9,999 rounds"),
        (["--clients", "10", "--rounds", "5", "--epsilon", "1", "--dp", "example"], "needs --samples, --batch and"),
        (["--clients", "10", "--rounds", "5", "--epsilon", "1", "--batch", "3"], "only --dp example needs them"),
        ([*SIZE, "--epsilon", "1", "--dp", "distributed", "--sampling", "poisson"], "use --sampling fixed"),
        ([*SIZE, "--epsilon", "1", "--sampling", "all"], "all 10000 clients take part"),
    ],
)
def test_bad_input_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_large_delta_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "--clients", "100", "--rounds", "5", "--epsilon", "1", "--delta", "0.01"]) == 0
    assert "--delta 0.01 is not below 1 / clients" in capsys.readouterr().err


RUN = ["run", "fedavg", "--clients", "10", "--rounds", "3", "--epochs", "1", "--executor", "one-by-one"]


def test_the_noise_of_a_run_follows_from_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = ["--dp", "central", "--epsilon", "8", "--delta", "1e-3", "--per-round", "5"]
    assert main([*RUN, *budget, "--out", "a"]) == 0
    told = capsys.readouterr().err
    assert "differential privacy of each client: Gaussian noise" in told
    assert "the noise follows from the seed, and protects nobody: see --secure-noise" in told
    about, records = read_about(Path("a")), read_metrics(Path("a"))
    chosen = about["request"]["privacy"]
    assert about["method"]["sampler"] == "Poisson(rate=0.5)"
    assert f"noise_multiplier={chosen['noise_multiplier']}" in about["method"]["server"]
    spent = [record["figures"]["privacy"]["epsilon"] for record in records]
    assert 7.9 < spent[-1] <= 8
    assert main(["resume", "a", "--rounds", "4"]) == 2
    assert "the privacy budget of the run is spent" in capsys.readouterr().err
    assert main(["resume", "a", "--epsilon", "9"]) == 2
    assert "--epsilon: a run keeps the value that it was started with, 8.0" in capsys.readouterr().err
    assert main(["show", "a"]) == 0
    assert "for each client (add-remove: one more or less)" in capsys.readouterr().out
    given = ["--dp", "central", "--noise-multiplier", "1.5", "--sampler", "uniform", "--delta", "1e-3", "--out", "b"]
    assert main([*RUN, *given, "--per-round", "5"]) == 0
    assert read_about(Path("b"))["method"]["sampler"] == "Uniform()"
    assert main(["resume", "b", "--rounds", "4"]) == 0
    assert read_metrics(Path("b"))[-1]["figures"]["privacy"]["relation"] == "replace-one"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dp", "central"], "--dp central needs a budget: give --epsilon, or --noise-multiplier"),
        (["--dp", "centrally", "--epsilon", "1"], "unknown mode of differential privacy 'centrally'"),
        (["--epsilon", "1"], "--epsilon needs a method that adds noise"),
        (["--clip", "1"], "--clip: needs --dp central, distributed, local or example"),
        (["--dp", "central", "--epsilon", "1", "--clip", "much"], "--clip must be"),
        (["--dp", "central", "--epsilon", "0"], "--epsilon must be a positive number, or none, got 0.0"),
    ],
)
def test_wrong_flags_are_refused(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# In Python.


def test_private_chooses_the_smallest_noise() -> None:
    made = private(fedavg(), "central", epsilon=4, delta=1e-5, clients=1000, per_round=50, rounds=100)
    assert made.sampler == Poisson(0.05)
    assert isinstance(made.server, NoisyMean)
    noise = made.server.noise_multiplier
    who = Participation(1000, 50, "poisson", 100)
    assert gaussian(noise, who).epsilon(100, 1e-5) <= 4 < gaussian(0.998 * noise, who).epsilon(100, 1e-5)
    whole = private(fedavg(), "central", noise_multiplier=2.0, clients=10)
    assert whole == fedavg().with_parts(server=NoisyMean(noise_multiplier=2.0))
    kept = fedavg().with_parts(sampler=RoundRobin())
    own = private(kept, "central", noise_multiplier=2.0, clients=10, per_round=5, own_sampler=True)
    assert own.sampler == RoundRobin()
    by_task = private(fedavg(), "central", epsilon=50.0, task=tiny_task(), rounds=2)
    assert by_task.sampler == Uniform()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fedspa(), "PersonalMask also sends changes of each client's mask"),
        (perm(), "GradientProbe sends gradients of each client in an exchange before it"),
        (scaffold(), "ScaffoldSGD also sends control_change of each client"),
        (sub_fedavg(), "Pruned also sends changes of each client's mask"),
        (fedpm(), "central privacy needs"),
        (local(), "central privacy needs clients that send changes of the model, not nothing"),
    ],
)
def test_what_the_noise_does_not_cover_is_refused(method: Method, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        private(method, "central", epsilon=1.0, clients=10)


def test_a_personal_model_that_stays_at_its_client_is_no_obstacle() -> None:
    assert isinstance(private(ditto(), "central", noise_multiplier=1.0, clients=10).server, NoisyMean)


def test_a_budget_or_noise_is_needed() -> None:
    with pytest.raises(ConfigError, match="epsilon must be given, or noise_multiplier"):
        private(fedavg(), "central", clients=10)
    with pytest.raises(ConfigError, match="clients: give their number, or a task"):
        private(fedavg(), "central", epsilon=1.0)


@pytest.mark.parametrize(
    ("dp", "noise", "per_round", "size", "told"),
    [("central", 1.0, 100, 10_000, False), ("central", 30.0, 100, 10_000, True), ("local", 3.0, 100, 10_000, True)],
)
def test_noise_that_hides_updates_is_announced(dp: str, noise: float, per_round: int, size: int, told: bool) -> None:
    """The noise of a mean of n updates has the norm z sqrt(d) / n in units of the clip, or z sqrt(d / n) if local."""
    given = {"dp": dp, "noise_multiplier": str(noise), "per_round": per_round, "size": size}
    assert bool(list(too_noisy(given))) == told


def test_colluding_clients_take_more_noise_of_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SIZE, "--noise-multiplier", "2", "--dp", "distributed"]
    none, usual, many = (shown([*words, *more], capsys) for more in (["--colluding", "0"], [], ["--colluding", "0.4"]))
    assert [each["honest"] for each in (none, usual, many)] == [90, 80, 50]
    for each in (none, usual, many):
        assert each["noise_per_client"] == pytest.approx(2 / each["honest"] ** 0.5)
        assert each["noise_of_all"] == pytest.approx(10 * each["noise_per_client"])
    assert none["epsilon"] == usual["epsilon"] == many["epsilon"]  # the noise multiplier is that of honest clients
    assert main(["privacy", *words]) == 0
    assert "10 may help the server, which subtracts their noise" in capsys.readouterr().out
    assert main(["privacy", *SIZE, "--epsilon", "1", "--colluding", "0.1"]) == 2
    assert "--colluding: only --dp distributed needs it" in capsys.readouterr().err


def test_secure_aggregation_and_noise_count_the_same_clients() -> None:
    given: dict[str, Any] = {"noise_multiplier": 2.0, "clients": 50, "per_round": 20}
    usual = private(fedavg(), "distributed", **given)
    assert usual.codec == DiscreteGaussian(noise_multiplier=2.0, clients=20, dropouts=0.1, colluding=0.1)
    assert usual.training.secure == SecAgg(min_clients=18), "no sum of fewer than share the noise"
    chosen = private(fedavg(), "distributed", **given, colluding=0.2)
    assert chosen.codec == replace(usual.codec, colluding=0.2)
    assert chosen.training.secure == SecAgg(colluding=0.2, min_clients=18)
    with pytest.raises(ConfigError, match="colluding is for distributed mode"):
        private(fedavg(), "local", **given, colluding=0.2)


def test_the_statement_of_a_run_names_the_clients_that_may_help_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [
        "--dp",
        "distributed",
        "--noise-multiplier",
        "2",
        "--colluding",
        "0.2",
        "--secure-noise",
        "--delta",
        "1e-3",
    ]
    assert main([*RUN, *flags, "--out", "a"]) == 0
    stated = read_metrics(Path("a"))[-1]["figures"]["privacy"]
    assert "noise of 7 or more honest clients" in stated["mechanism"]
    assert "also with the help of 2 of the 10 clients of a round" in stated["protects_from"]
    assert read_about(Path("a"))["request"]["privacy"]["colluding"] == "0.2"
    assert main([*RUN, "--dp", "central", "--epsilon", "9", "--colluding", "0.2"]) == 2
    assert "--colluding: only --dp distributed needs it" in capsys.readouterr().err
