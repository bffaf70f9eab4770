"""The graph of neighbours: its form, and its probabilities of failure against counts and a published formula."""

import itertools
import math
from collections import deque

import pytest
from scipy.stats import hypergeom

from gossamer.core.random import key
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.graph import LIVENESS, SECRECY, SMALL, Bounds, failure, needed, neighbourhoods, tail

DEFAULT = Bounds(2 / 3, 0.1, 0.1)


@pytest.mark.parametrize(("clients", "degree"), [(7, 2), (8, 4), (101, 32), (5, 4), (4, 4)])
def test_the_graph_is_regular_and_symmetric(clients: int, degree: int) -> None:
    numbers = [10 * client for client in range(clients)]
    graph = neighbourhoods(numbers, degree, key(3))
    assert sorted(graph) == numbers
    for client, others in graph.items():
        assert others == sorted(set(others))
        assert len(others) == min(degree, clients - 1)
        assert client not in others
        assert all(client in graph[other] for other in others)


def test_the_order_of_the_ring_follows_from_the_key() -> None:
    one, same, other = (neighbourhoods(range(50), 4, key(seed)) for seed in (0, 0, 1))
    assert one == same != other


@pytest.mark.parametrize("threshold", [0.5, 0.51, 2 / 3, 0.9, 1.0])
def test_secrets_need_more_than_half_of_the_members(threshold: float) -> None:
    for members in range(3, 200):
        need = needed(threshold, members)
        assert members / 2 < need <= members
        assert threshold * members - 1e-6 <= need


@pytest.mark.parametrize(("population", "marked", "drawn", "least"), [(99, 10, 32, 5), (20, 6, 10, 0), (9, 3, 4, 4)])
def test_tails_are_hypergeometric(population: int, marked: int, drawn: int, least: int) -> None:
    assert tail(population, marked, drawn, least) == pytest.approx(hypergeom.sf(least - 1, population, marked, drawn))


def connected(graph: dict[int, list[int]], left: set[int]) -> bool:
    seen, waiting = set[int](), deque([min(left)])
    while waiting:
        at = waiting.popleft()
        if at not in seen:
            seen.add(at)
            waiting.extend(left.intersection(graph[at]))
    return seen == left


@pytest.mark.parametrize(("clients", "degree", "gone"), [(9, 4, 4), (10, 4, 5), (10, 6, 6)])
def test_the_bound_on_connection_holds_for_all_sets_of_lost_clients(clients: int, degree: int, gone: int) -> None:
    graph = neighbourhoods(range(clients), degree, key(0))
    sets = list(itertools.combinations(range(clients), gone))
    apart = sum(not connected(graph, set(range(clients)) - set(lost)) for lost in sets) / len(sets)
    bound = failure(clients, degree, Bounds(1.0, 0.0, gone / clients)).secrecy
    assert 0 < apart <= bound
    assert connected(graph, set(range(degree // 2 - 1, clients)))  # fewer than half of the degree are gone


@pytest.mark.parametrize(("clients", "degree", "lost"), [(9, 4, 2), (10, 6, 3)])
def test_the_bound_on_liveness_holds_for_all_sets_of_lost_clients(clients: int, degree: int, lost: int) -> None:
    graph, bounds = neighbourhoods(range(clients), degree, key(0)), Bounds(0.7, 0.0, lost / clients)
    need, sets = needed(0.7, degree + 1), list(itertools.combinations(range(clients), lost))
    stuck = sum(
        any(len({client, *graph[client]} - set(gone)) < need for client in range(clients)) for gone in sets
    ) / len(sets)
    assert 0 < stuck <= failure(clients, degree, bounds).liveness


@pytest.mark.parametrize("clients", [34, 50, 100, 300, 1000])
def test_the_degree_is_the_smallest_that_protects_a_cohort(clients: int) -> None:
    degree = SecAgg().rules(clients).degree
    found = failure(clients, degree, DEFAULT)
    assert found.secrecy <= SECRECY
    assert found.liveness <= LIVENESS
    less = failure(clients, degree - 2, DEFAULT)
    assert less.secrecy > SECRECY or less.liveness > LIVENESS
    assert SecAgg().failure(clients) == found


def test_small_cohorts_have_a_complete_graph_and_large_ones_a_sparse_one() -> None:
    assert [SecAgg().rules(clients).degree for clients in (3, 20, SMALL)] == [2, 19, SMALL - 1]
    degrees = [SecAgg().rules(clients).degree for clients in (100, 1000, 10_000, 100_000)]
    assert degrees == [32, 124, 160, 172]  # logarithmic at the end: the paper's claim
    assert degrees[-1] < 12 * math.log2(100_000)


@pytest.mark.parametrize("clients", range(3, 60))
def test_a_complete_graph_does_not_fail_with_the_stated_shares(clients: int) -> None:
    for bounds in (DEFAULT, Bounds(2 / 3, 0.3, 1 / 3), Bounds(0.6, 0.1, 0.4), Bounds(1.0, 0.9, 0.0)):
        assert failure(clients, clients - 1, bounds) == (0, 0)
