"""Losses and metrics: closed forms, batches of unequal sizes, and torchmetrics as a second opinion."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import Task
from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key, uniform
from gossamer.tasks.losses import IGNORED, LOSSES, loss_function, loss_name, weight, wrong_targets
from gossamer.tasks.metrics import METRICS, Judgement, Metric, default_metrics, metrics_of
from gossamer.tasks.objective import Objective


def drawn(name: str, *shape: int) -> Tensor:
    return 2 * uniform(fold(key(0), name), math.prod(shape), dtype=torch.float64).view(shape) - 1


def judge(metrics: Any, outputs: Tensor, targets: Tensor, sizes: Sequence[int], loss: Any = "mse") -> Judgement:
    """Judge outputs that arrive in batches of these sizes."""
    task = Task.of(lambda: nn.Linear(1, 1), *2 * [(torch.zeros(2, 1), torch.zeros(2, 1))], clients=1, loss="mse")
    objective = Objective(replace(task, loss=loss, metrics=metrics), "cpu", key(0))
    return objective.judged(torch.split(outputs, list(sizes)), targets)


LOGITS, CLASSES = drawn("logits", 11, 4), (torch.arange(11) * 7) % 4
SCORES, BITS = drawn("scores", 11), drawn("bits", 11) > 0
LABELS, MARKS = drawn("labels", 11, 3), drawn("marks", 11, 3) > 0
GUESSES, NUMBERS = drawn("guesses", 11, 2), drawn("numbers", 11, 2) * 3
TOKENS, NEXT = drawn("tokens", 11, 5, 6), (drawn("next", 11, 5) * 3 + 3).long()
for row in range(11):
    NEXT[row, 5 - row % 5 :] = IGNORED  # samples have 5, 4, 3, 2 or 1 tokens

COUNTED = NEXT != IGNORED
WANTED: dict[str, tuple[Tensor, Tensor, float]] = {
    "accuracy": (LOGITS, CLASSES, (LOGITS.argmax(1) == CLASSES).double().mean().item()),
    "top5": (drawn("ten", 11, 10), CLASSES, math.nan),
    "exact_match": (LABELS, MARKS, ((LABELS > 0) == MARKS).all(1).double().mean().item()),
    "multilabel_accuracy": (LABELS, MARKS, ((LABELS > 0) == MARKS).double().mean().item()),
    "mse": (GUESSES, NUMBERS, F.mse_loss(GUESSES, NUMBERS).item()),
    "rmse": (GUESSES, NUMBERS, math.sqrt(F.mse_loss(GUESSES, NUMBERS).item())),
    "mae": (GUESSES, NUMBERS, F.l1_loss(GUESSES, NUMBERS).item()),
    "token_accuracy": (TOKENS, NEXT, (TOKENS.argmax(-1) == NEXT)[COUNTED].double().mean().item()),
    "perplexity": (TOKENS, NEXT, F.cross_entropy(TOKENS[COUNTED], NEXT[COUNTED]).exp().item()),
    "r2": (GUESSES, NUMBERS, math.nan),
    "auroc": (SCORES, BITS.long(), math.nan),
    "f1": (SCORES, BITS.long(), math.nan),
}
ranked = WANTED["top5"][0].argsort(1, descending=True)[:, :5].tolist()
WANTED["top5"] = (*WANTED["top5"][:2], sum(c in row for c, row in zip(CLASSES.tolist(), ranked, strict=True)) / 11)
residual, spread = (NUMBERS - GUESSES).square().sum(0), (NUMBERS - NUMBERS.mean(0)).square().sum(0)
WANTED["r2"] = (GUESSES, NUMBERS, (1 - residual / spread).mean().item())
pairs = [(p, n) for p in SCORES[BITS].tolist() for n in SCORES[~BITS].tolist()]
WANTED["auroc"] = (SCORES, BITS.long(), sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs))
hits, guessed, real = int(((SCORES > 0) & BITS).sum()), int((SCORES > 0).sum()), int(BITS.sum())
WANTED["f1"] = (SCORES, BITS.long(), 2 * hits / (guessed + real))


@pytest.mark.parametrize("sizes", [(11,), (4, 4, 3), (1, 9, 1)])
@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_its_closed_form_over_batches_of_any_size(name: str, sizes: tuple[int, ...]) -> None:
    outputs, targets, wanted = WANTED[name]
    (found,) = judge(name, outputs, targets, sizes, lambda output, target: output.sum() * 0).values()
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_the_metric_of_some_samples_follows_from_the_evaluation_of_all(name: str) -> None:
    outputs, targets, _ = WANTED[name]
    some, none = np.array([8, 1, 2, 5, 7, 3]), lambda output, target: output.sum() * 0
    whole = judge(name, outputs, targets, (4, 4, 3), none).values(some)
    assert whole == pytest.approx(judge(name, outputs[some], targets[some], (6,), none).values(), rel=1e-12)


def test_an_output_axis_of_size_1_is_not_broadcast() -> None:
    for name in ("mse", "l1", "huber", "bce"):
        loss, y = loss_function(name), BITS.double()
        assert loss(SCORES[:, None], y) == loss(SCORES, y) == loss(SCORES, y[:, None])
        with pytest.raises(
            ValueError, match=rf"{name} needs outputs and targets of one shape, got \[11, 4\] and \[11\]"
        ):
            loss(LOGITS, y)
    assert judge("rmse", SCORES[:, None], BITS.double(), (11,)).values() == judge("rmse", SCORES, BITS, (11,)).values()


def test_token_losses_are_means_over_the_tokens_that_count() -> None:
    wanted = F.cross_entropy(TOKENS[COUNTED], NEXT[COUNTED])
    for loss, outputs in (("cross_entropy", TOKENS), ("nll", TOKENS.log_softmax(-1))):
        function = loss_function(loss)
        torch.testing.assert_close(function(outputs, NEXT), wanted)
        torch.testing.assert_close(
            torch.tensor(judge("perplexity", outputs, NEXT, (4, 4, 3), loss).loss).double(), wanted
        )
        assert weight(function, NEXT) == int(COUNTED.sum())
        nothing = torch.full_like(NEXT, IGNORED)
        assert function(outputs, nothing) == 0, "a batch without a token that counts is no reason for NaN"
    assert math.isnan(
        judge("token_accuracy", TOKENS, torch.full_like(NEXT, IGNORED), (11,), "cross_entropy").values()[0]
    )


@pytest.mark.parametrize("function", [loss.function for loss in LOSSES.values()])
def test_losses_can_be_stacked(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """As the stacked executor calls them: under vmap of grad."""
    cases = {"classes": (LOGITS, CLASSES), "numbers": (GUESSES, NUMBERS), "shares": (LABELS, MARKS)}
    chosen = cases[LOSSES[str(loss_name(function))].targets]
    for outputs, targets in (chosen, (TOKENS, NEXT)) if chosen[1] is CLASSES else (chosen,):
        twice = torch.stack([outputs, 2 * outputs]), torch.stack([targets, targets])
        stacked = torch.vmap(torch.func.grad(function))(*twice)
        for each, found in zip(twice[0], stacked, strict=True):
            torch.testing.assert_close(torch.func.grad(function)(each, targets), found)


def test_losses_of_torch_are_known_by_name_if_they_have_their_usual_options() -> None:
    assert loss_name(loss_function(nn.MSELoss())) == loss_name(loss_function(F.mse_loss)) == "mse"
    assert loss_name(loss_function(nn.CrossEntropyLoss())) == "cross_entropy"
    assert loss_name(loss_function(nn.BCEWithLogitsLoss())) == "bce"
    for other in (nn.CrossEntropyLoss(label_smoothing=0.1), nn.MSELoss(reduction="sum"), nn.HuberLoss(delta=2.0)):
        assert loss_function(other) is other
    weighted = nn.BCEWithLogitsLoss(pos_weight=torch.ones(1))
    assert loss_function(weighted) is weighted


@pytest.mark.parametrize(
    ("loss", "target", "names"),
    [
        ("cross_entropy", CLASSES, ("accuracy",)),
        ("cross_entropy", NEXT, ("token_accuracy", "perplexity")),
        ("mse", NUMBERS, ("rmse", "mae")),
        ("mse", NUMBERS[:, 0], ("rmse", "mae")),
        ("l1", NUMBERS, ("mae", "rmse")),
        ("bce", BITS, ("accuracy",)),
        ("bce", BITS[:, None], ("accuracy",)),
        ("bce", MARKS, ("exact_match", "multilabel_accuracy")),
        (lambda output, target: output.sum(), CLASSES, ("accuracy",)),
    ],
)
def test_default_metrics_follow_from_loss_and_targets(loss: Any, target: Tensor, names: tuple[str, ...]) -> None:
    assert tuple(metric.name for metric in default_metrics(loss_function(loss), target)) == names


def test_binary_accuracy_is_that_of_a_logit_above_0() -> None:
    wanted = ((SCORES > 0) == BITS).double().mean().item()
    assert judge("accuracy", SCORES[:, None], BITS.long(), (5, 6), "bce").values() == (wanted,)


def test_metrics_that_need_two_classes_are_undefined_without() -> None:
    for name in ("auroc", "r2"):
        assert math.isnan(judge(name, SCORES, torch.ones(11), (11,)).values()[0])
    assert math.isnan(judge("f1", -SCORES.abs(), torch.zeros(11), (11,)).values()[0])


# Metrics of your own.


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets).abs() / targets.abs()).mean(1)


def largest_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().max()


largest_error.higher_is_better = False  # type: ignore[attr-defined]


def test_what_a_function_returns_decides_its_aggregation() -> None:
    found = judge([relative_error, largest_error], GUESSES, NUMBERS, (2, 8, 1))
    each = relative_error(GUESSES, NUMBERS)
    assert found.values() == pytest.approx((each.mean().item(), largest_error(GUESSES, NUMBERS).item()), rel=1e-12)
    some = np.array([3, 1])
    assert found.values(some)[1] == pytest.approx(largest_error(GUESSES[some], NUMBERS[some]).item())
    assert [metric.better for metric in found.metrics] == ["higher", "lower"]

    def weighted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return targets[:, 0] * outputs[:, 0].abs(), outputs[:, 0].abs()

    wanted = np.average(NUMBERS[:, 0], weights=GUESSES[:, 0].abs())
    assert judge(weighted, GUESSES, NUMBERS, (2, 8, 1)).values() == pytest.approx((wanted,))


def test_a_mapping_names_metrics_and_a_known_name_has_its_direction_and_format() -> None:
    made = metrics_of({"mistakes": lambda output, y: (output > 0) != y, "rmse": relative_error, "error": "mae"})
    assert [(each.name, each.better, each.format) for each in made] == [
        ("mistakes", "higher", "number"),
        ("rmse", "lower", "number"),
        ("error", "lower", "number"),
    ]
    assert made[1].last is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("acuracy", "unknown metric"),
        (["rmse", "rmse"], "there are two metrics called rmse: name them with a mapping"),
        (lambda output, y: y, "a lambda has no name: give it one with a mapping"),
        (Metric, "Metric is a class: give an object"),
        (3, r"metrics: must be names, functions of outputs and targets, or torchmetrics objects, got 3"),
        ({"loss": "mse"}, "Metric.name must be a word of letters, digits and _ that records do not use otherwise"),
        ({"personal_best": "mse"}, "Metric.name must be a word"),
    ],
)
def test_wrong_metrics_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        metrics_of(given)


@pytest.mark.parametrize(
    ("given", "message"), [("mce", "unknown loss"), (nn.MSELoss, "give an object, MSELoss()"), (3, "must be a name")]
)
def test_wrong_losses_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        loss_function(given)


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        ("cross_entropy", NUMBERS, "not classes: give loss='mse'"),
        ("cross_entropy", CLASSES[:, None], r"write y.squeeze\(1\)"),
        ("cross_entropy", CLASSES - 5, "one label per sample"),
        ("cross_entropy", NEXT - 7, "one class per token"),
        ("mse", NUMBERS / 0, "not finite"),
        ("bce", NUMBERS, "from 0 to 1"),
    ],
)
def test_targets_that_do_not_fit_the_loss_are_refused(loss: str, target: Tensor, message: str) -> None:
    assert not wrong_targets(loss_function("mse"), NUMBERS)
    x = torch.zeros(len(target), 2)
    with pytest.raises(ConfigError, match=message):
        Task.of(lambda: nn.Linear(2, 2), (x, target), (x, target), clients=2, loss=loss)


def test_correct_is_refused_with_what_to_write_instead() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    old: Any = lambda output, y: output.argmax(-1) == y  # noqa: E731
    with pytest.raises(ConfigError, match=r"Task.correct was removed: write metrics=f"):
        Task.of(lambda: nn.Linear(2, 2), (x, y), (x, y), clients=2, correct=old)


def test_a_loss_of_your_own_for_numbers_needs_metrics() -> None:
    samples = torch.zeros(4, 2), torch.zeros(4)
    with pytest.raises(ConfigError, match="the loss is your own and targets are no classes: say what to measure"):
        Task.of(
            lambda: nn.Linear(2, 1), samples, samples, clients=2, loss=lambda output, y: (output[:, 0] - y).abs().mean()
        )


def test_a_metric_that_fails_is_refused_before_training() -> None:
    samples = torch.zeros(4, 2), torch.zeros(4)
    task = Task.of(lambda: nn.Linear(2, 1), samples, samples, clients=2, loss="mse", metrics=["rmse", "top5", "auroc"])
    objective = Objective(task, "cpu", key(0))
    replaced = Objective(
        replace(task, metrics=metrics_of({"odd": lambda output, y: output.expand(2, 3)})), "cpu", key(0)
    )
    with pytest.raises(ConfigError, match=r"the metric odd fails .* must return one value per sample or one number"):
        replaced.check(objective.initial())


# torchmetrics.


def test_torchmetrics_agree() -> None:
    tm = pytest.importorskip("torchmetrics")
    cases = {
        "accuracy": tm.classification.MulticlassAccuracy(4, average="micro"),
        "f1": tm.classification.MulticlassF1Score(4),
        "auroc": tm.classification.MulticlassAUROC(4),
    }
    for name, other in cases.items():
        ours, theirs = judge([name, other], LOGITS, CLASSES, (4, 7), "cross_entropy").values()
        assert ours == pytest.approx(theirs, rel=1e-6), name
    binary = [tm.classification.BinaryAUROC(), tm.classification.BinaryF1Score()]
    found = judge(["auroc", "f1", *binary], SCORES, BITS.long(), (4, 7), "bce")
    assert found.values()[:2] == pytest.approx(found.values()[2:], rel=1e-6)
    numbers = [tm.MeanSquaredError(squared=False), tm.MeanAbsoluteError(), tm.R2Score()]
    found = judge(["rmse", "mae", "r2", *numbers], GUESSES, NUMBERS, (4, 7))
    assert found.values()[:3] == pytest.approx(found.values()[3:], rel=1e-5)
    assert [(each.name, each.better) for each in found.metrics[3:]] == [
        ("mean_squared_error", "lower"),
        ("mean_absolute_error", "lower"),
        ("r2_score", "higher"),
    ]
    words = tm.text.Perplexity(ignore_index=IGNORED)
    ours, theirs = judge({"perplexity": "perplexity", "other": words}, TOKENS, NEXT, (4, 7), "cross_entropy").values()
    assert ours == pytest.approx(theirs, rel=1e-5)


class Count:
    """A torchmetrics object, without torchmetrics."""

    higher_is_better: bool | None = False

    def __init__(self) -> None:
        self.seen = 0

    def reset(self) -> None:
        self.seen = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.seen)


def test_an_object_with_update_compute_and_reset_is_a_metric() -> None:
    mine = Count()
    found = judge(mine, GUESSES, NUMBERS, (4, 7))
    assert found.values() == (11,)
    assert found.values(np.array([1, 2])) == (2,)
    assert (found.metrics[0].name, found.metrics[0].better) == ("count", "lower")
    assert mine.seen == 0, "the object that was given stays as it was"
    mine.higher_is_better = None
    with pytest.raises(ConfigError, match="Count has no direction"):
        metrics_of(mine)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=12))
def test_auroc_is_the_share_of_pairs_in_order(samples: list[tuple[int, bool]]) -> None:
    scores, real = torch.tensor([float(s) for s, _ in samples]), torch.tensor([bool(b) for _, b in samples])
    pairs = [(p, n) for p in scores[real].tolist() for n in scores[~real].tolist()]
    found = METRICS["auroc"].of_all(scores, real)
    if pairs:
        assert found == pytest.approx(sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs))
    else:
        assert math.isnan(found)
