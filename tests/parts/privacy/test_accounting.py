"""Epsilon is that of published settings and of closed forms, and the calibrated noise is the smallest."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gossamer import ConfigError, Poisson, RoundRobin, Uniform
from gossamer.core.privacy import Guarantee, Participation, Sampling
from gossamer.parts.privacy import accounting
from gossamer.parts.privacy.accounting import combined, dp_sgd, gaussian
from gossamer.parts.privacy.budget import calibrate, participation, rounded_up
from gossamer.parts.privacy.renyi import Renyi, compose, from_renyi
from gossamer.parts.privacy.tree import squared_sensitivity, tree
from gossamer.parts.servers.private_tree import prefix


def taking(clients: int, cohort: float, sampling: Sampling, **more: int) -> Participation:
    return Participation(clients, cohort, sampling, 100, **more)


def first_conversion(noise: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon by the conversion of Mironov, 2017 (arXiv:1702.07476, Proposition 3), which older papers used."""
    curve = accounting.poisson_curve(noise, rate)
    pairs = zip(accounting.orders(), curve, strict=True)
    return min(steps * value - math.log(delta) / (order - 1) for order, value in pairs)


PUBLISHED = [
    # Abadi et al., 2016, https://arxiv.org/abs/1607.00133, Section 4: q = 0.01, sigma = 4, T = 10,000, delta = 1e-5.
    (4.0, 0.01, 10_000, 1e-5, 1.26),
    # TensorFlow Privacy, tutorials/README.md, "Select Parameters": MNIST in batches of 256, delta = 1e-5.
    (1.12, 256 / 60_000, 60 * 60_000 // 256, 1e-5, 2.92),
    (0.6, 256 / 60_000, 30 * 60_000 // 256, 1e-5, 9.74),
    (1.2, 256 / 60_000, 10 * 60_000 // 256, 1e-5, 1.20),
    # McMahan et al., 2018, https://arxiv.org/abs/1710.06963, Table 1: K users, C per round, z = 1, delta = K ** -1.1.
    (1.0, 1e2 / 1e5, 10**3, 1e5**-1.1, 1.07),
    (1.0, 1e2 / 1e5, 10**5, 1e5**-1.1, 2.21),
    (1.0, 1e2 / 1e5, 10**6, 1e5**-1.1, 7.50),
    (1.0, 1e3 / 1e6, 10**4, 1e6**-1.1, 1.39),
    (1.0, 1e4 / 1e6, 10**3, 1e6**-1.1, 3.06),
]


@pytest.mark.parametrize(("noise", "rate", "rounds", "delta", "published"), PUBLISHED)
def test_published_settings(noise: float, rate: float, rounds: int, delta: float, published: float) -> None:
    """Their Rényi divergences are ours. Newer conversions, and PLD, give a smaller epsilon."""
    assert first_conversion(noise, rate, rounds, delta) == pytest.approx(published, rel=4e-3)
    by = {name: gaussian(noise, taking(10**6, rate * 1e6, "poisson"), accountant=name) for name in ("pld", "rdp")}
    assert 0 < by["pld"].epsilon(rounds, delta) < by["rdp"].epsilon(rounds, delta) < published


def test_the_published_setting_of_dp_ftrl() -> None:
    """StackOverflow in Kairouz et al., 2021 (arXiv:2103.00039): a tree of 1,600 rounds, each client at most once.

    dp-accounting gives 19.74 and 2.04 for it, by Rényi divergences; a Gaussian mechanism is exact.
    """
    for noise, published in ((1.13, 19.74), (8.83, 2.04)):
        spent = tree(noise, taking(342_477, 100, "other", separation=1600)).epsilon(1600, 1e-6)
        assert 0.8 * published < spent < published


def exact_delta(noise: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism (Balle and Wang, 2018, arXiv:1805.06530, Theorem 5)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(1 / (2 * noise) - epsilon * noise) - math.exp(epsilon) * phi(-1 / (2 * noise) - epsilon * noise)


@pytest.mark.parametrize("sampling", ["all", "other"])
def test_plain_composition_is_one_gaussian_mechanism(sampling: Sampling) -> None:
    made = gaussian(3.0, taking(50, 50, sampling))
    for rounds in (1, 7, 100):
        spent = made.epsilon(rounds, 1e-4)
        assert exact_delta(3.0 / math.sqrt(rounds), spent) == pytest.approx(1e-4, rel=1e-6)
    assert made.epsilon(0, 1e-4) == 0
    assert made.relation == "zero-out", "the number of clients is known: the mean is divided by it"


def test_a_rate_of_one_is_no_sampling() -> None:
    all_of_them = gaussian(2.0, taking(10, 10, "all")).epsilon(5, 1e-5)
    for sampling in ("poisson", "fixed"):
        assert gaussian(2.0, taking(10, 10, sampling)).epsilon(5, 1e-5) == all_of_them
    almost = gaussian(2.0, taking(10, 9.99999, "poisson")).epsilon(5, 1e-5)
    assert almost == pytest.approx(all_of_them, rel=1e-3)


def test_a_replaced_client_counts_twice() -> None:
    """Fixed-size sampling is about replaced clients: with almost all clients, z counts as z / 2."""
    made = gaussian(4.0, taking(1000, 999, "fixed"))
    assert made.relation == "replace-one"
    assert made.epsilon(10, 1e-5) == gaussian(2.0, taking(1000, 1000, "all")).epsilon(10, 1e-5)
    small = gaussian(4.0, taking(1000, 10, "fixed")).epsilon(10, 1e-5)
    assert small < made.epsilon(10, 1e-5) / 5


def test_two_gaussians_on_one_cohort_are_one() -> None:
    """Adaptive clipping (Andrew et al., arXiv:1905.03871, Theorem 1): z_sum = (z^-2 - (2 s)^-2)^(-1/2)."""
    z, count_noise = 1.1, 5.0
    z_sum = (z**-2 - (2 * count_noise) ** -2) ** -0.5
    assert combined(z_sum, 2 * count_noise) == pytest.approx(z)


def test_dp_sgd_composes_the_steps_of_all_rounds() -> None:
    one = dp_sgd(1.0, 16, taking(9, 3, "poisson", samples=160), steps=10)
    assert one.unit == "example"
    assert one.epsilon(5, 1e-5) == gaussian(1.0, taking(100, 10, "poisson")).epsilon(50, 1e-5)
    rarely = dp_sgd(1.0, 16, taking(9, 3, "other", samples=160, separation=3), steps=10)
    assert rarely.epsilon(5, 1e-5) == one.epsilon(2, 1e-5)
    whole = dp_sgd(5.0, 16, taking(9, 3, "poisson", samples=7), steps=4)
    assert whole.epsilon(3, 1e-5) == pytest.approx(gaussian(5.0, taking(2, 2, "all")).epsilon(12, 1e-5))
    with pytest.raises(ConfigError, match="number of samples"):
        dp_sgd(1.0, 16, taking(9, 3, "poisson"), steps=10)


# Trees.


def patterns(rounds: int, separation: int, first: int = 0) -> Iterator[tuple[int, ...]]:
    """Every way to take part in some rounds, at least so far apart."""
    yield ()
    for visit in range(first, rounds):
        yield from ((visit, *others) for others in patterns(rounds, separation, visit + separation))


def squared(visits: Sequence[int], trees: Sequence[range], honaker: bool) -> int:
    """The squared norm of all released nodes of some trees if a client adds 1 in some rounds."""
    total = 0
    for tree_rounds in trees:
        for level in range(len(tree_rounds).bit_length()):
            for index in range(len(tree_rounds) >> level):
                if honaker or index % 2 == 0:
                    first = tree_rounds.start + (index << level)
                    total += sum(first <= visit < first + (1 << level) for visit in visits) ** 2
    return total


@pytest.mark.parametrize("honaker", [True, False])
@pytest.mark.parametrize("rounds", [1, 2, 3, 6, 7, 8, 12, 13, 15])
def test_the_sensitivity_of_a_tree_is_that_of_the_worst_pattern(rounds: int, honaker: bool) -> None:
    for separation in range(1, rounds + 2):
        for every in (None, 1, 3, 4, 5, 8):
            sizes = range(0, rounds, every or rounds)
            trees = [range(first, min(rounds, first + (every or rounds))) for first in sizes]
            if every is not None and rounds > 12:
                continue
            worst = max(squared(visits, trees, honaker) for visits in patterns(rounds, separation))
            assert squared_sensitivity(rounds, separation, every, honaker=honaker) == worst


def test_sensitivities_of_trees() -> None:
    """Taking part in every b-th round, from the first on, is almost always the worst: not with 24 rounds and b = 3."""
    whole = [range(24)]
    assert squared(range(0, 24, 3), whole, True) == 86
    assert squared((0, 3, 6, 9, 12, 15, 20, 23), whole, True) == 88 == squared_sensitivity(24, 3)
    assert squared_sensitivity(12, 1) == 12 * 1 + 6 * 4 + 3 * 16 + 1 * 64 == 148
    assert squared_sensitivity(31, 8) == 4 + 4 + 4 + 3 + 4 == 19
    for rounds in (100, 1023, 1024, 1600):  # once: a node of each level
        assert squared_sensitivity(rounds, rounds) == squared_sensitivity(rounds, rounds, honaker=False)
        assert squared_sensitivity(rounds, rounds) == rounds.bit_length()


@pytest.mark.parametrize("separation", [1, 7, 333, 3000])
def test_long_runs_are_quick(separation: int) -> None:
    rounds = 10**5 - 1
    found = squared_sensitivity(rounds, separation)
    levels = [Counter(v >> level for v in range(0, rounds >> level << level, separation)) for level in range(17)]
    by_steps = sum(sum(count**2 for count in each.values()) for each in levels)
    assert by_steps <= found <= 1.01 * by_steps


def test_nodes_with_an_odd_index_never_show_without_honaker() -> None:
    """The sums of the first rounds are a one-to-one map of the nodes with even indices: one new node per round."""
    for rounds in (1, 6, 13, 16):
        nodes = [(level, i) for level in range(5) for i in range(0, rounds >> level, 2)]
        of_sums = np.array([[node in prefix(t) for node in nodes] for t in range(1, rounds + 1)], dtype=float)
        assert of_sums.shape == (rounds, rounds)
        assert abs(np.linalg.det(of_sums)) == pytest.approx(1)


def test_restarts_compose_trees() -> None:
    made = tree(6.0, taking(100, 10, "other", separation=8), restart=8)
    assert made.epsilon(8, 1e-5) == gaussian(6.0, taking(2, 2, "all")).epsilon(4, 1e-5)
    assert made.epsilon(20, 1e-5) == gaussian(6.0, taking(2, 2, "all")).epsilon(4 + 4 + 3, 1e-5)
    assert made.epsilon(0, 1e-5) == 0


# Rényi divergences.


def curve(order: float) -> float:
    """A Gaussian mechanism with noise multiplier 2."""
    return order / 8


def test_divergences_of_a_gaussian_give_its_epsilon() -> None:
    made = from_renyi(curve, taking(50, 50, "all"), "noise", "all others")
    tight = gaussian(2.0, taking(50, 50, "all")).epsilon(10, 1e-5)
    assert tight < made.epsilon(10, 1e-5) < 1.15 * tight
    assert made.epsilon(0, 1e-5) == 0


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.2])
def test_amplification_of_any_mechanism_is_weaker_than_that_of_a_gaussian(rate: float) -> None:
    who = taking(10_000, rate * 10_000, "poisson")
    tight = gaussian(2.0, who, accountant="rdp").epsilon(100, 1e-5)
    general = from_renyi(curve, who, "noise", "all others")
    assert general.relation == "add-remove"
    assert 0.99 * tight < general.epsilon(100, 1e-5) < from_renyi(curve, taking(9, 9, "all"), "", "").epsilon(100, 1e-5)


def test_amplification_without_replacement_is_that_of_the_library() -> None:
    who = taking(10_000, 100, "fixed")
    made = from_renyi(curve, who, "noise", "all others", replaced=lambda order: 4 * curve(order))
    assert made.relation == "replace-one"
    assert made.epsilon(100, 1e-5) == pytest.approx(gaussian(2.0, who).epsilon(100, 1e-5), rel=0.05)


@pytest.mark.parametrize(("sampling", "amplified"), [("fixed", True), ("other", True), ("poisson", False)])
def test_without_a_bound_nothing_is_amplified(sampling: Sampling, amplified: bool) -> None:
    made = from_renyi(curve, taking(1000, 10, sampling), "noise", "all others", amplified=amplified)
    assert made.relation == "zero-out"
    assert made.epsilon(9, 1e-5) == from_renyi(curve, taking(5, 5, "all"), "", "").epsilon(9, 1e-5)


def test_mechanisms_of_one_round_are_added() -> None:
    one = from_renyi(curve, taking(5, 5, "all"), "noise", "all others")
    assert isinstance(one, Renyi)
    assert compose(one, one).epsilon(3, 1e-5) == one.epsilon(6, 1e-5)
    other = from_renyi(curve, taking(50, 5, "poisson"), "noise", "all others")
    assert isinstance(other, Renyi)
    with pytest.raises(ConfigError, match="different neighbours"):
        compose(one, other)


# Calibration.


@pytest.mark.parametrize(
    ("sampling", "cohort", "epsilon"), [("poisson", 100, 4.0), ("poisson", 1000, 0.5), ("fixed", 100, 2.0)]
)
def test_calibrated_noise_is_the_smallest(sampling: Sampling, cohort: int, epsilon: float) -> None:
    def target(noise: float) -> Guarantee:
        return gaussian(noise, taking(10_000, cohort, sampling))

    noise = calibrate(target, epsilon, 1e-5, 200)
    assert noise == float(f"{noise:.4g}")
    assert target(noise).epsilon(200, 1e-5) <= epsilon < target(0.998 * noise).epsilon(200, 1e-5)


def test_a_budget_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"epsilon 0.001 with .* cannot be met in 1,000 rounds.*fewer rounds"):
        calibrate(lambda noise: gaussian(noise, taking(9, 9, "all")), 1e-3, 1e-5, 1000)
    with pytest.raises(ConfigError, match="epsilon must be a positive number, got -1"):
        calibrate(lambda noise: gaussian(noise, taking(9, 9, "all")), -1, 1e-5, 10)
    assert calibrate(lambda noise: gaussian(noise, taking(9, 9, "all")), 1e6, 1e-5, 1) == 0.05


@pytest.mark.parametrize(("exact", "rounded"), [(1.0, 1.0), (0.12341, 0.1235), (1234.1, 1235.0), (9.99999, 10.0)])
def test_noise_is_rounded_up(exact: float, rounded: float) -> None:
    assert rounded_up(exact) == rounded


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_a_guarantee_is_refused(noise: float) -> None:
    with pytest.raises(ConfigError, match="noise_multiplier must be a positive number"):
        gaussian(noise, taking(10, 1, "poisson"))


# Who takes part.


def test_what_is_known_about_participation() -> None:
    assert participation(Poisson(0.03), 50, 50, 10) == Participation(50, 1.5, "poisson", 10)
    assert participation(Uniform(), 50, 10, 10) == Participation(50, 10, "fixed", 10)
    assert participation(Uniform(), 50, 50, 10).sampling == "all"
    assert participation(RoundRobin(), 50, 20, 10) == Participation(50, 20, "other", 10, separation=2)
    unsteady = participation(Uniform(), 50, 10, 10, steady=False)
    assert unsteady.sampling == "other"  # of the available clients, whose number varies
    assert participation(RoundRobin(), 50, 20, 10, steady=False).separation == 1
