"""Run control: targets, patience, callbacks, more rounds, and warm starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer import ConfigError, Cosine, Options, RunError, Task, centralised, compose, fedavg, local, simulate
from gossamer.core import files
from gossamer.engines.control import Until, out_of_patience
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.parts.codecs import Dense
from gossamer.parts.servers import Mean
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Full
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import INIT, STOPPED, read_about, read_metrics
from gossamer.runs.report.scores import ACCURACY, Score
from gossamer.runs.report.targets import Target
from gossamer.testing import tiny_task

RMSE = Score("rmse", "lower", "number")
METHOD = fedavg(lr=0.3, epochs=1, batch=8)

values = st.lists(st.one_of(st.none(), st.integers(0, 6).map(lambda n: n / 4)), min_size=1, max_size=12)


def records(name: str, found: list[float | None], every: int = 1) -> list[dict[str, Any]]:
    """One record per round; only every k-th is evaluated."""
    evaluated = {every * (at + 1): value for at, value in enumerate(found)}
    return [
        {"round": round_, **({name: evaluated[round_]} if round_ in evaluated else {})}
        for round_ in range(1, every * len(found) + 1)
    ]


def kept(path: Path) -> list[dict[str, Any]]:
    """The records of a run without times and memory."""
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in read_metrics(path)]


# Targets.


@given(values, st.sampled_from([ACCURACY, RMSE]), st.integers(0, 6).map(lambda n: n / 4))
def test_a_run_ends_with_the_first_record_that_reaches_the_target(
    found: list[float | None], score: Score, wanted: float
) -> None:
    until = Until.of({score.name: wanted})
    stops = [r["round"] for r in records(score.name, found) if until.reason(r, [score])]
    good = [value is not None and (value >= wanted if score is ACCURACY else value <= wanted) for value in found]
    assert stops == [round_ for round_, reached in enumerate(good, 1) if reached]


@pytest.mark.parametrize(
    ("text", "value", "reached"),
    [("x>1", 1.0, False), ("x>=1", 1.0, True), ("x<1", 1.0, False), ("x<=1", 1.0, True), ("x < 1", 0.5, True)],
)
def test_signs_mean_what_they_say(text: str, value: float, reached: bool) -> None:
    assert Target.of_text(text).reached({"x": value}, {}) is reached
    assert str(Target.of_text(text)) == text.replace(" ", "")


def test_a_target_may_be_written_in_percent() -> None:
    assert str(Target.of_text("accuracy=30%")) == "accuracy=0.3"


def test_several_targets_end_a_run_with_the_first_that_is_reached() -> None:
    until = Until.of("accuracy=0.9,loss<0.3")
    assert until.reason({"accuracy": 0.5, "loss": 0.2}, [ACCURACY]) == "loss<0.3 is reached: loss is 0.2"
    assert until.reason({"accuracy": 0.5, "loss": 0.3}, [ACCURACY]) is None
    figure = Until.of("figures.masks.density<0.5")
    assert figure.reason({"figures": {"masks": {"density": 0.4}}}, [ACCURACY]) is not None


@given(st.lists(st.tuples(st.sampled_from(["=", "<", ">=", ">"]), st.floats(-1e9, 1e9)), min_size=1, max_size=3))
def test_targets_are_read_as_they_were_written(pairs: list[tuple[str, float]]) -> None:
    until = Until(tuple(Target("accuracy", sign, value) for sign, value in pairs))
    assert Until.of_text(until.to_text()) == until
    options = Options(until=until, patience=2)
    assert Options.read(json.loads(json.dumps(options.describe()))) == options
    assert Options().describe().keys().isdisjoint({"until", "patience"}), "folders of earlier runs stay valid"


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("acuracy=0.9", "until: unknown metric 'acuracy': did you mean accuracy?"),
        ("joules=3", "until: joules=3: write joules<3 or joules>3"),
        ("accuracy", "until must be a metric and a number, such as accuracy=0.9 or loss<0.3, got 'accuracy'"),
        ({"accuracy": "high"}, "until must be a metric and a number"),
        ({"accuracy": 90}, "until: accuracy=90: accuracy is at most 1: write accuracy=0.9"),
        ("personal_accuracy>=900", "until: personal_accuracy>=900: personal_accuracy is at most 1"),
    ],
)
def test_a_wrong_target_is_refused_before_training(until: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate(METHOD, tiny_task(), rounds=1, until=until)
    assert message in str(refused.value)


# Patience.


@given(values, st.sampled_from([ACCURACY, RMSE]), st.integers(1, 4), st.integers(1, 3))
def test_patience_ends_after_evaluations_without_improvement(
    found: list[float | None], score: Score, patience: int, every: int
) -> None:
    all_of_them = records(score.name, found, every)
    stop = next((n for n in range(1, len(all_of_them) + 1) if out_of_patience(all_of_them[:n], patience, score)), None)
    best, waited, expected = None, 0, None
    for at, value in enumerate(found, 1):
        better = value is not None and (best is None or (value > best if score is ACCURACY else value < best))
        best, waited = (value, 0) if better else (best, waited + 1)
        if waited == patience:
            expected = every * at
            break
    assert stop == expected


# Runs.


def test_a_stopped_run_is_finished_and_says_why(tmp_path: Path) -> None:
    result = simulate(METHOD, tiny_task(), rounds=9, until={"accuracy": 0.0}, out=tmp_path / "run")
    assert len(result.metrics) == 1
    assert result.stopped == read_metrics(tmp_path / "run")[-1][STOPPED]
    assert "accuracy=0 is reached" in str(result.stopped)
    again = simulate(METHOD, tiny_task(), rounds=9, until={"accuracy": 0.0}, out=tmp_path / "run", resume=True)
    assert again.metrics == read_metrics(tmp_path / "run")
    assert len(again.metrics) == 1


@pytest.mark.parametrize("saved", [False, True], ids=["before its checkpoint", "after its checkpoint"])
@pytest.mark.parametrize("rule", ["until", "patience"])
def test_a_run_that_was_killed_as_it_stopped_ends_with_the_same_bytes(
    rule: str, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accuracy of a network that learns nothing does not improve after round 1."""
    method = fedavg(lr=1e-12, epochs=1)
    how: dict[str, Any] = {"rounds": 6, rule: {"until": "loss<9", "patience": 2}[rule]}
    whole = simulate(method, tiny_task(), out=tmp_path / "whole", **how)
    last = {"until": 1, "patience": 3}[rule]
    assert (len(whole.metrics), whole.stopped is not None) == (last, True)
    real = RunFolder.save

    def dies(self: RunFolder, rounds: int, *given: Any) -> None:
        if rounds < last or saved:
            real(self, rounds, *given)
        if rounds == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        simulate(method, tiny_task(), out=tmp_path / "cut", **how)
    monkeypatch.setattr(RunFolder, "save", real)
    resumed = simulate(method, tiny_task(), out=tmp_path / "cut", resume=True, **how)
    assert resumed.stopped == whole.stopped
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")
    newest = f"checkpoints/{last}/server.safetensors"
    assert (tmp_path / "cut" / newest).read_bytes() == (tmp_path / "whole" / newest).read_bytes()


def test_callbacks_see_the_record_and_the_run_and_may_stop_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []

    def look(record: dict[str, Any], run: Simulation) -> str | None:
        weight = float(next(run.module().parameters()).detach().sum())
        seen.append((record["round"], len(run.metrics), weight))
        return "enough" if record["round"] == 2 else None

    result = simulate(METHOD, tiny_task(), rounds=5, callbacks=[look, lambda record, run: None], out=tmp_path / "run")
    assert [entry[:2] for entry in seen] == [(1, 1), (2, 2)]
    assert seen[-1][2] == pytest.approx(float(next(result.model.parameters()).detach().sum()))
    assert result.stopped == "enough"
    assert simulate(METHOD, tiny_task(), rounds=5, out=tmp_path / "run", resume=True).stopped == "enough"


def test_one_callback_needs_no_list() -> None:
    assert simulate(METHOD, tiny_task(), rounds=3, callbacks=lambda record, run: "enough").stopped == "enough"


def test_a_callback_that_raises_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    def broken(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 2:
            raise ZeroDivisionError("no disk")

    with pytest.raises(RunError, match="the callback broken fails after round 2: ZeroDivisionError: no disk") as ended:
        simulate(METHOD, tiny_task(), rounds=4, callbacks=[broken], out=tmp_path / "run")
    assert isinstance(ended.value.__cause__, ZeroDivisionError)
    assert [record["round"] for record in read_metrics(tmp_path / "run")] == [1, 2]
    whole = simulate(METHOD, tiny_task(), rounds=4, out=tmp_path / "whole")
    resumed = simulate(METHOD, tiny_task(), rounds=4, out=tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))


def test_a_callback_that_returns_something_else_is_refused() -> None:
    with pytest.raises(RunError, match="must return None, or a text: the reason to stop; got True"):
        simulate(METHOD, tiny_task(), rounds=2, callbacks=[lambda record, run: True])  # type: ignore[list-item,return-value]


# More rounds.


def test_a_longer_run_keeps_its_records_and_goes_on_as_if_it_had_been_that_long(tmp_path: Path) -> None:
    simulate(METHOD, tiny_task(), rounds=2, out=tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    longer = gossamer.resume(tmp_path / "run", task=tiny_task(), rounds=4)
    assert (tmp_path / "run/metrics.jsonl").read_bytes().startswith(before)
    simulate(METHOD, tiny_task(), rounds=4, out=tmp_path / "whole")
    assert kept(tmp_path / "run") == kept(tmp_path / "whole"), "a constant learning rate does not know the last round"
    assert longer.summary()["rounds_asked"] == 4
    with pytest.raises(ConfigError, match="rounds must be above 4, the number of finished rounds, got 3"):
        gossamer.resume(tmp_path / "run", task=tiny_task(), rounds=3)
    assert gossamer.resume(tmp_path / "run", task=tiny_task(), rounds=5).stopped is None


def test_schedules_count_the_new_number_of_rounds_from_the_next_round_on(tmp_path: Path) -> None:
    method = compose(Full(), SGD(lr=0.3, epochs=1, schedule=Cosine()), Dense(), Mean())
    simulate(method, tiny_task(), rounds=2, out=tmp_path / "run")
    run = gossamer.resume(tmp_path / "run", method=method, task=tiny_task(), rounds=4).run
    assert isinstance(run, Simulation)
    assert [run.clock(number).rounds for number in range(4)] == [2, 2, 4, 4]


def test_a_target_that_ended_a_run_no_longer_holds_when_it_goes_on(tmp_path: Path) -> None:
    simulate(METHOD, tiny_task(), rounds=3, until="accuracy>=0", patience=9, out=tmp_path / "run")
    longer = gossamer.resume(tmp_path / "run", task=tiny_task(), rounds=3)
    assert (len(longer.metrics), longer.stopped) == (3, None)
    stopped = gossamer.resume(tmp_path / "run", task=tiny_task(), rounds=9, until={"loss": 1e9})
    assert (len(stopped.metrics), stopped.stopped is not None) == (4, True)
    assert [each["after"] for each in read_about(tmp_path / "run")["extended"]] == [1, 3]


# Warm starts.


def trained() -> nn.Module:
    module = tiny_task().model()
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.25)
    return module


def sources(folder: Path) -> dict[str, Any]:
    state = trained().state_dict()
    torch.save(state, folder / "model.pt")
    (folder / "model.safetensors").write_bytes(files.to_tensors(state))
    return {
        "module": trained(),
        "tensors": state,
        "torch": folder / "model.pt",
        "safetensors": str(folder / "model.safetensors"),
        "folder": folder,
    }


@pytest.mark.parametrize("source", ["module", "tensors", "torch", "safetensors", "folder"])
def test_training_starts_with_the_given_weights(source: str, tmp_path: Path) -> None:
    run = Simulation(METHOD, tiny_task(), Options(rounds=1), init=Init.of(sources(tmp_path)[source]))
    assert all(bool((tensor == 0.25).all()) for tensor in run.model().values())
    assert run.about["init"]["digest"] == Init.of(trained()).digest


def test_a_run_starts_where_another_ended_and_keeps_that_when_it_is_resumed(tmp_path: Path) -> None:
    first = simulate(METHOD, tiny_task(), rounds=1, out=tmp_path / "first")
    warm: dict[str, Any] = {"rounds": 3, "seed": 4}
    whole = simulate(METHOD, tiny_task(), init=tmp_path / "first", out=tmp_path / "whole", **warm)
    assert (tmp_path / "whole" / INIT).is_file()
    start = Simulation(METHOD, tiny_task(), Options(**warm), init=Init.kept(tmp_path / "whole")).model()
    assert all(torch.equal(start[name], tensor) for name, tensor in first.model.state_dict().items())

    def stop(record: dict[str, Any], run: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(METHOD, tiny_task(), init=tmp_path / "first", out=tmp_path / "cut", callbacks=[stop], **warm)
    resumed = simulate(METHOD, tiny_task(), out=tmp_path / "cut", resume=True, **warm)
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")
    assert resumed.metrics[-1]["accuracy"] == whole.metrics[-1]["accuracy"]
    with pytest.raises(RunError, match="was started with other initial weights"):
        simulate(METHOD, tiny_task(), init=trained(), out=tmp_path / "cut", resume=True, **warm)


def test_every_mismatch_of_initial_weights_is_listed_at_once() -> None:
    state = {"0.weight": torch.zeros(8, 7), "0.bias": torch.full((8,), torch.nan), "9.bias": torch.zeros(1)}
    with pytest.raises(ConfigError) as refused:
        simulate(METHOD, tiny_task(), rounds=1, init=state)
    assert refused.value.mistakes == (
        "init tensors: the network has tensors that it lacks: 2.weight, 2.bias",
        "init tensors: it has tensors that the network lacks: 9.bias",
        "init tensors: shapes differ: 0.weight [8, 7], not [8, 6]",
        "init tensors: values that are not finite: 0.bias",
    )


def test_counters_and_tied_weights_may_be_missing() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

    state = Tied().state_dict()
    del state["norm.num_batches_tracked"], state["second.weight"]
    task = Task(Tied, tiny_task().data, tiny_task().split)
    assert torch.equal(Init.of(state).applied(task).model().state_dict()["second.weight"], state["first.weight"])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: torch.save(trained(), file), "pt: it holds pickled objects, such as a whole module: save model."),
        (lambda file: torch.save([1, 2], file), "must be a mapping of names to tensors: save model.state_dict()"),
        (lambda file: file.write_bytes(b"nonsense"), "it holds no tensors that can be read"),
        (lambda file: None, "there is no file or run"),
    ],
)
def test_files_without_a_state_dict_are_refused(write: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path / "model.pt")
    with pytest.raises(ConfigError) as refused:
        Init.of(tmp_path / "model.pt")
    assert message in str(refused.value)


def test_a_result_is_no_start() -> None:
    with pytest.raises(ConfigError, match=r"got a Result: write init=result\.model$"):
        Init.of(simulate(METHOD, tiny_task(), rounds=1))  # type: ignore[arg-type]


def test_a_run_that_is_not_there_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json in it: leave out resume=True to start it"):
        simulate(METHOD, tiny_task(), rounds=1, out=tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="resume=True continues the run of a folder: name it with out="):
        simulate(METHOD, tiny_task(), rounds=1, resume=True)


def test_centralized_training_is_a_start(tmp_path: Path) -> None:
    result = simulate(centralised(epochs=1), tiny_task(), rounds=2, out=tmp_path / "run")
    found = Init.of(tmp_path / "run").tensors
    assert found.keys() == result.model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in result.model.state_dict().items())


def test_a_run_without_a_global_model_is_no_start(tmp_path: Path) -> None:
    simulate(local(epochs=1), tiny_task(), rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="no global model that is stored as weights: use gossamer export"):
        Init.of(tmp_path / "run")
