"""Labels of compared runs: the shortest text that tells them apart."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gossamer import Method, compose, fedavg, fedprox
from gossamer.parts.codecs import Dense, Eden, OnWeights, TopK
from gossamer.parts.downlinks import Delta
from gossamer.parts.samplers import RoundRobin
from gossamer.parts.servers import Bucketing, Clip, Median, Robust, TrimmedMean
from gossamer.parts.solvers import SGD, Adam
from gossamer.parts.views import Full
from gossamer.runs.report.labels import labels


def about(method: Method, **options: Any) -> dict[str, Any]:
    task = {"data": "digits", "model": "mlp", "split": options.pop("split", "iid"), "clients": 5, "statistics": "batch"}
    described = {"seed": 0, "executor": "auto", "channel": "perfect", "per_round": None, **options}
    recipe = method.recipe._asdict() if method.recipe else None
    return {"method": method.describe(), "recipe": recipe, "request": None, "task": task, "options": described}


def test_runs_of_one_method_show_what_differs() -> None:
    runs = [
        fedavg(),
        fedavg().with_parts(codec=OnWeights(Eden(1))),
        fedavg().with_parts(codec=TopK(0.03)),
        fedavg(lr=0.2),
    ]
    assert labels([*map(about, runs)]) == ["fedavg", "fedavg codec=eden", "fedavg codec=topk", "fedavg lr=0.2"]
    eden = [fedavg().with_parts(codec=Eden(bits)) for bits in (1, 2)]
    assert labels([*map(about, eden)]) == ["fedavg bits=1", "fedavg bits=2"]
    solvers = [fedavg(), fedavg().with_parts(solver=Adam()), fedavg().with_parts(sampler=RoundRobin())]
    assert labels([*map(about, solvers)]) == [
        "fedavg solver=SGD",
        "fedavg solver=Adam",
        "fedavg solver=SGD sampler=round-robin",
    ]


def test_robust_rules_are_shown_by_the_name_that_is_typed() -> None:
    rules = [Median(), TrimmedMean(0.3), Clip("median", 3.0), Bucketing(2, TrimmedMean(0.3))]
    robust = [fedavg().with_parts(server=Robust(rule)) for rule in rules]
    assert labels([*map(about, [fedavg(), robust[0]])]) == ["fedavg", "fedavg server=median"]
    assert labels([*map(about, robust)]) == [
        "fedavg rule=median",
        "fedavg rule=trimmed-mean:0.3",
        "fedavg rule=clip:median,3.0",
        "fedavg rule=bucketing:2,trimmed-mean:0.3",
    ]


def test_methods_of_other_names_show_no_parts() -> None:
    assert labels([about(fedavg()), about(fedprox(lr=0.3))]) == ["fedavg", "fedprox"]
    assert labels([about(fedavg()), about(fedavg())]) == ["fedavg", "fedavg"]
    assert labels([about(compose(Full(), SGD())), about(compose(Full(), SGD(0.2)))]) == [
        "custom lr=0.1",
        "custom lr=0.2",
    ]


def test_settings_of_task_and_run_are_shown_unless_they_are_defaults() -> None:
    runs = [about(fedavg()), about(fedprox(), seed=3), about(fedavg(), channel="lossy:rate=0.1", split="labels:k=2")]
    assert labels(runs) == [
        "fedavg split=iid",
        "fedprox split=iid seed=3",
        "fedavg split=labels:k=2 channel=lossy:rate=0.1",
    ]


HALF = Delta(OnWeights(Eden(2)), Dense("float16"))


def test_a_downlink_is_shown_as_it_is_typed() -> None:
    links = (Dense(), Delta(), Delta(OnWeights(Eden(2))), HALF)
    found = labels([about(fedavg().with_parts(down=down)) for down in links])
    typed = ["down=delta", "down=delta:eden:2", "down=delta:eden:2,dense:float16"]
    assert found == ["fedavg", *(f"fedavg {words}" for words in typed)]


METHODS = st.builds(
    lambda lr, codec, down: (fedavg() if lr is None else fedavg(lr=lr)).with_parts(codec=codec, down=down),
    st.sampled_from([None, 0.1, 0.2]),
    st.sampled_from([Dense(), Eden(1), Eden(2), OnWeights(Eden(1)), OnWeights(TopK(0.1)), Dense("float16")]),
    st.sampled_from([Dense(), Dense("bfloat16"), Eden(3), Delta(), Delta(OnWeights(Eden(2))), HALF]),
)


@given(st.lists(st.builds(about, METHODS, seed=st.sampled_from([0, 1])), min_size=2, max_size=5))
def test_runs_that_differ_have_different_labels(runs: list[dict[str, Any]]) -> None:
    settings = {str((run["method"], run["task"], run["options"])) for run in runs}
    assert len(set(labels(runs))) == len(settings)
