"""What several runs spend together: the parts of a run spend what the whole run does, and other ways give no less."""

import pytest

from gossamer import DPSGD, ConfigError
from gossamer.core.privacy import Guarantee, Participation, Sampling
from gossamer.parts.privacy.accounting import FixedGaussian, PlainGaussian, SampledGaussian, dp_sgd, gaussian
from gossamer.parts.privacy.budget import BASIC, EXACT, PLD, RDP, Spent, composed
from gossamer.parts.privacy.renyi import from_renyi
from gossamer.parts.privacy.tree import TreeGaussian, tree

DELTA = 1e-5


def taking(clients: int, cohort: float, sampling: Sampling, separation: int = 1) -> Participation:
    return Participation(clients, cohort, sampling, 100, samples=500, separation=separation)


PLAIN = gaussian(30.0, taking(50, 50, "all"))
POISSON = gaussian(1.0, taking(1000, 10, "poisson"))
FIXED = gaussian(3.0, taking(1000, 10, "fixed"))
DISCRETE = from_renyi(lambda order: order / 800, taking(50, 50, "other"), "noise", "everybody")
TREE = tree(20.0, taking(100, 10, "other", 10), 16)


@pytest.mark.parametrize(
    ("made", "by"),
    [(PLAIN, EXACT), (POISSON, PLD), (FIXED, RDP), (DISCRETE, RDP)],
    ids=["all", "poisson", "fixed", "x"],
)
def test_two_halves_of_a_run_are_the_whole(made: Guarantee, by: str) -> None:
    halves = composed([Spent(made, 40), Spent(made, 60)], DELTA)
    assert halves.by == by
    assert halves.relation == made.relation
    whole = made.epsilon(100, DELTA)
    if isinstance(made, FixedGaussian):
        whole = composed([Spent(made, 100)], DELTA).epsilon
        assert whole == pytest.approx(made.epsilon(100, DELTA), rel=0.05)  # it knows more orders here, and no other way
    assert halves.epsilon == pytest.approx(whole, rel=1e-3)
    assert composed([Spent(made, 100), Spent(made, 0)], DELTA).epsilon == pytest.approx(whole, rel=1e-3)


def test_trees_are_gaussian_mechanisms() -> None:
    found = composed([Spent(TREE, 16), Spent(TREE, 16)], DELTA)
    assert found.by == EXACT
    # A tree of each run begins anew: a client may be in the last round of one and in the first of the next.
    assert found.epsilon >= TREE.epsilon(32, DELTA)
    both = composed([Spent(TREE, 16), Spent(PLAIN, 7)], DELTA)
    assert both.by == EXACT
    assert max(TREE.epsilon(16, DELTA), PLAIN.epsilon(7, DELTA)) < both.epsilon
    assert both.relation == "zero-out"


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        (PLAIN, POISSON, PLD),
        (POISSON, gaussian(2.0, taking(500, 50, "poisson")), PLD),
        (POISSON, FIXED, BASIC),  # the epsilons of PLD and of RDP add up to less than RDP of both
        (gaussian(1.0, taking(1000, 10, "poisson"), accountant="rdp"), gaussian(1.0, taking(99, 9, "fixed")), RDP),
        (PLAIN, DISCRETE, RDP),
        (TREE, FIXED, RDP),
    ],
)
def test_different_runs_spend_more_than_each_and_less_than_the_sum(
    first: Guarantee, second: Guarantee, by: str
) -> None:
    runs = [Spent(first, 16), Spent(second, 50)]
    found = composed(runs, DELTA)
    alone = [run.guarantee.epsilon(run.rounds, DELTA) for run in runs]
    assert found.by == by
    assert max(alone) < found.epsilon <= sum(run.guarantee.epsilon(run.rounds, DELTA / 2) for run in runs)
    assert found.epsilon == pytest.approx(composed(runs[::-1], DELTA).epsilon)
    assert found.relation == (first.relation if first.relation == second.relation else "zero-out")


def test_other_ways_are_no_smaller_than_pld() -> None:
    """A tiny mechanism that is known by its divergences alone changes the way, and hardly the sum."""
    none = from_renyi(lambda order: 1e-12 * order, taking(50, 50, "other"), "noise", "everybody")
    runs = [Spent(PLAIN, 10), Spent(POISSON, 50)]
    by_losses, by_divergences = composed(runs, DELTA), composed([*runs, Spent(none, 1)], DELTA)
    assert by_divergences.by in (RDP, BASIC)
    assert by_losses.epsilon < by_divergences.epsilon < 2 * by_losses.epsilon


def test_a_client_may_have_any_size_in_each_run() -> None:
    who = Participation(9, 9, "all", 10, samples=33)
    small, large = (DPSGD(epochs=1, batch=16, noise_multiplier=z).guarantee(who) for z in (1.0, 1.5))
    found = composed([Spent(small, 3), Spent(large, 3)], DELTA)
    assert len(small.cases()) == 4
    assert found.by == PLD
    assert found.epsilon > max(small.epsilon(3, DELTA), large.epsilon(3, DELTA))


class Own(Guarantee):
    """A guarantee of which only epsilon is known."""

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return one per release."""
        return float(rounds + again)


def test_unknown_mechanisms_add_up() -> None:
    own = Own("client", "zero-out", "noise", "none", "everybody")
    found = composed([Spent(own, 2), Spent(PLAIN, 5)], DELTA)
    assert found.by == BASIC
    assert found.epsilon == pytest.approx(2 + PLAIN.epsilon(5, DELTA / 2))


def test_units_are_not_mixed() -> None:
    example = dp_sgd(1.0, 16, taking(50, 50, "all"), steps=3)
    with pytest.raises(ConfigError, match="different units"):
        composed([Spent(PLAIN, 3), Spent(example, 3)], DELTA)


def test_repeated_rounds_count_again() -> None:
    """As for a single run: a repeated round of any mechanism is at least as much as one more round in which all are."""
    plain = PlainGaussian("client", "zero-out", "noise", "none", "everybody", 2.0)
    whole = composed([Spent(plain, 3, 2)], DELTA)
    assert whole.epsilon == pytest.approx(composed([Spent(plain, 5)], DELTA).epsilon)
    sampled = SampledGaussian("client", "zero-out", "noise", "none", "everybody", 2.0, 0.1)
    assert composed([Spent(sampled, 3, 2), Spent(plain, 1)], DELTA) == composed(
        [Spent(sampled, 5), Spent(plain, 1)], DELTA
    )
    nodes = TreeGaussian("client", "zero-out", "noise", "none", "everybody", 2.0, None, 8)
    again = composed([Spent(nodes, 8, 1)], DELTA).epsilon
    assert again == pytest.approx(nodes.epsilon(8, DELTA, 1))
    assert nodes.square(8, 1) == 4 + 4, "the nodes of levels 0 to 3 are drawn anew"
