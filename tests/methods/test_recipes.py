"""Recipes: fields that many share are declared once, and each recipe's signature has them."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Unpack

import pytest

from gossamer import Method, fedavg, fedavg_tuned, fedprox, fedsgd, fedspa, local, scaffold
from gossamer.cli.build import assemble
from gossamer.cli.flags import flags
from gossamer.cli.request import Request
from gossamer.core.errors import ConfigError
from gossamer.methods import METHODS
from gossamer.methods.recipes import Averaging, Training, as_typed, pick, recipe
from gossamer.parts.codecs import Eden
from gossamer.parts.servers import WeightedMean
from gossamer.parts.solvers import SGD

SHARED = {"lr": 0.1, "epochs": 5, "steps": None, "batch": 16, "weights": "samples"}


def defaults(name: str) -> dict[str, object]:
    return {p.name: p.default for p in inspect.signature(METHODS[name]).parameters.values()}


def test_shared_fields_come_first_in_every_signature() -> None:
    assert defaults("fedavg") == {**SHARED, "server_lr": 1.0}
    assert defaults("fedprox") == {**SHARED, "mu": 0.01, "server_lr": 1.0}
    assert [*defaults("scaffold")] == [*SHARED, "option", "server_lr"]
    assert [flag.name for flag in flags(METHODS["fedprox"], "fedprox")] == [*SHARED, "mu", "server_lr"]


def test_a_recipe_may_have_other_defaults() -> None:
    assert defaults("scaffold")["weights"] == "uniform"
    server, solver = scaffold().server, fedspa().solver
    assert isinstance(server, WeightedMean)
    assert isinstance(solver, SGD)
    assert server.weights == "uniform"
    assert (defaults("fedspa")["batch"], solver.batch) == (128, 128)


def test_what_is_given_arrives() -> None:
    method = fedprox(lr=0.3, epochs=2, steps=4, batch=None, weights="uniform", mu=0.5)
    assert method.solver == SGD(0.3, 2, 4, None, proximal=0.5)
    assert isinstance(method.server, WeightedMean)
    assert method.server.weights == "uniform"
    assert local(lr=0.3).solver == SGD(0.3, 5, None, 16)


def test_an_unknown_field_is_refused_with_the_name_of_the_recipe() -> None:
    with pytest.raises(ConfigError, match=r"^fedavg has no parameter 'lrr': did you mean lr\?$"):
        fedavg(lrr=0.1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^fedsgd: too many positional arguments: it takes lr, weights$"):
        fedsgd(0.1, "samples", 3)  # type: ignore[call-arg]


def test_a_method_keeps_the_name_of_its_recipe_and_what_it_was_given() -> None:
    assert fedavg().recipe == ("fedavg", {})
    assert fedavg_tuned(lr=0.3, tune_epochs=2).recipe == ("fedavg-tuned", {"lr": 0.3, "tune_epochs": 2})
    assert fedsgd(0.2).with_parts(codec=Eden(2)).recipe == ("fedsgd", {"lr": 0.2})
    assert as_typed(Eden(2)) == "eden:bits=2"
    assert fedavg(lr=0.1) == fedavg() != fedavg(lr=0.2)
    assert "recipe" not in fedavg().describe().keys() | {repr(fedavg())}


@pytest.mark.parametrize("name", METHODS)
def test_a_noted_recipe_makes_the_same_method_again(name: str) -> None:
    call = METHODS[name]().recipe
    assert call is not None
    assert call.name == name
    assert METHODS[call.name](**call.given) == METHODS[name]()


def test_help_explains_shared_fields() -> None:
    assert "global_lr: learning rate of FedAvg" in str(METHODS["perm-two-stage"].__doc__)
    assert "bound: maximum of lr times loss factor" in str(METHODS["perm-two-stage"].__doc__)
    assert str(METHODS["perm"].__doc__).count("    ties: ") == 1


def test_a_recipe_of_ones_own_can_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.methods.registry.METHODS", {})

    @recipe(epochs=1)
    def mine(*, pull: float = 0.2, **fields: Unpack[Averaging]) -> Method:
        return fedavg(**fields).with_parts(solver=SGD(**pick(Training, fields), proximal=pull))

    assert mine().solver == SGD(0.1, 1, None, 16, proximal=0.2)
    assert mine(lr=0.7, pull=0.0).solver == SGD(0.7, 1, None, 16)
    with pytest.raises(TypeError, match="recipe mine: unknown shared parameters epoch; it has lr, epochs"):
        recipe(epoch=1)(mine.__wrapped__)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def reached() -> Callable[[str], float]:
    """The accuracy that a method reaches with no flags; of clients' own models, where there is no global one."""

    @cache
    def run(name: str) -> float:
        simulation = assemble(Request(name), {"eval_every": "30"})
        last = simulation.run(None, lambda record: None).metrics[-1]
        return float(last["accuracy" if simulation.method.shared else "personal_accuracy"])

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("name", METHODS)
def test_with_no_flags_every_method_learns(name: str, reached: Callable[[str], float]) -> None:
    assert reached(name) >= 0.8 * reached("fedavg")
