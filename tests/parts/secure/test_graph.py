"""The graph of neighbours: its form, what clients agree to, and its probabilities of failure against counts."""

import itertools
from collections import deque

import numpy as np
import pytest
from scipy.stats import hypergeom

from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.rules import (
    CERTAIN,
    LIVENESS,
    SECRECY,
    SMALL,
    Bounds,
    Graph,
    failure,
    kept,
    needed,
    quorum,
    tail,
)

DEFAULT = Bounds(2 / 3, 0.1, 0.1)
SEED = bytes(32)


@pytest.mark.parametrize(("clients", "degree"), [(7, 2), (8, 4), (101, 32), (5, 4), (4, 4)])
def test_the_graph_is_regular_and_symmetric(clients: int, degree: int) -> None:
    graph = Graph(clients, degree, SEED)
    for client in range(clients):
        others = graph.neighbours(client)
        assert others == sorted(set(others))
        assert len(others) == min(degree, clients - 1)
        assert client not in others
        assert all(client in graph.neighbours(other) for other in others)
        members = graph.members(client)
        assert sorted(members) == sorted([client, *others])
        assert [graph.point(client, member) for member in members] == list(range(1, len(members) + 1))


def test_the_order_of_the_ring_follows_from_the_list() -> None:
    one, same, other = (Graph(50, 4, bytes([seed]) * 32) for seed in (0, 0, 1))
    assert one.ring == same.ring != other.ring
    assert sorted(one.ring) == list(range(50))


@pytest.mark.parametrize("threshold", [0.5, 0.51, 2 / 3, 0.9, 1.0])
def test_secrets_need_more_than_half_of_the_members(threshold: float) -> None:
    for members in range(3, 200):
        need = needed(threshold, members)
        assert members / 2 < need <= members
        assert threshold * members - 1e-6 <= need


@pytest.mark.parametrize("bounds", [DEFAULT, Bounds(0.55, 0.1, 0.1), Bounds(0.51, 0.0, 0.1), Bounds(0.9, 0.79, 0.0)])
def test_two_lists_of_survivors_cannot_both_have_a_quorum(bounds: Bounds) -> None:
    for clients in range(3, 2000):
        colluding = int(bounds.colluding * clients + 1e-9)
        assert 2 * quorum(clients, bounds) > clients + colluding
        assert quorum(clients, bounds) <= clients


@pytest.mark.parametrize(("population", "marked", "drawn", "least"), [(99, 10, 32, 5), (20, 6, 10, 0), (9, 3, 4, 4)])
def test_tails_are_hypergeometric(population: int, marked: int, drawn: int, least: int) -> None:
    assert tail(population, marked, drawn, least) == pytest.approx(hypergeom.sf(least - 1, population, marked, drawn))


def cut_off(graph: Graph, size: int, gone: set[int]) -> bool:
    """Whether the clients that are left fall into pieces."""
    left = set(range(size)) - gone
    seen, waiting = set[int](), deque([min(left)])
    while waiting:
        at = waiting.popleft()
        if at not in seen:
            seen.add(at)
            waiting.extend(left.intersection(graph.neighbours(at)))
    return seen != left


def flags(size: int, gone: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    there = np.ones(size, np.bool_)
    there[list(gone)] = False
    return there


@pytest.mark.parametrize(("clients", "degree", "lost", "colluding"), [(9, 4, 2, 1), (10, 6, 3, 1), (12, 8, 4, 3)])
def test_no_colluding_clients_cut_off_survivors_to_whom_clients_agree(
    clients: int, degree: int, lost: int, colluding: int
) -> None:
    """Below 2 ceil(h / 2) colluding clients, whoever they are, all honest survivors are in one piece."""
    graph = Graph(clients, degree, SEED)
    assert 2 * kept(degree // 2) > colluding
    agreed = 0
    for gone in itertools.combinations(range(clients), lost):
        if graph.sound(flags(clients, gone), degree // 2 + 1):
            continue
        agreed += 1
        for liars in itertools.combinations(set(range(clients)) - set(gone), colluding):
            assert not cut_off(graph, clients, {*gone, *liars})
    assert agreed > 0


def test_without_the_check_of_the_ring_a_group_is_cut_off() -> None:
    graph = Graph(20, 8, SEED)
    gone = {graph.ring[at] for at in (0, 1, 2, 3, 10, 11, 12, 13)}
    assert cut_off(graph, 20, gone)
    assert "a group is cut off" in graph.sound(flags(20, tuple(gone)), 5)


def test_agreement_needs_enough_survivors_among_the_members_of_each_survivor() -> None:
    graph = Graph(20, 8, SEED)
    assert graph.sound(flags(20, ()), 9) == ""
    assert "8 of the members of a survivor survive, 9 are needed" in graph.sound(flags(20, (3,)), 9)
    assert graph.sound(flags(20, (3,)), 8) == ""
    assert "17 clients survive, 18 are needed" in Graph(20, 19, SEED).sound(flags(20, (1, 2, 3)), 18)


@pytest.mark.parametrize(("clients", "degree", "colluding"), [(10, 4, 3), (12, 4, 4)])
def test_the_bound_on_secrecy_holds_for_all_sets_of_colluding_clients(
    clients: int, degree: int, colluding: int
) -> None:
    """The server calls lost whom it wants; colluding clients are at random places."""
    graph, broken = Graph(clients, degree, SEED), 0
    sets = list(itertools.combinations(range(clients), colluding))
    for liars in sets:
        lists = itertools.chain.from_iterable(
            itertools.combinations(set(range(clients)) - set(liars), lost) for lost in range(5)
        )
        agreed = (set(gone) for gone in lists if not graph.sound(flags(clients, gone), degree // 2 + 1))
        broken += any(cut_off(graph, clients, {*gone, *liars}) for gone in agreed)
    bound = failure(clients, degree, Bounds(0.6, colluding / clients, 0.0)).secrecy
    assert 0 < broken / len(sets) <= bound


@pytest.mark.parametrize(("clients", "degree", "lost"), [(9, 4, 2), (10, 6, 3)])
def test_the_bound_on_liveness_holds_for_all_sets_of_lost_clients(clients: int, degree: int, lost: int) -> None:
    graph, bounds = Graph(clients, degree, SEED), Bounds(0.7, 0.0, lost / clients)
    need, sets = needed(0.7, degree + 1), list(itertools.combinations(range(clients), lost))
    stuck = sum(
        bool(graph.sound(flags(clients, gone), need))
        or any(len(set(graph.members(client)) - set(gone)) < need for client in range(clients))
        for gone in sets
    ) / len(sets)
    assert 0 < stuck <= failure(clients, degree, bounds).liveness


@pytest.mark.parametrize("clients", [101, 300, CERTAIN, CERTAIN + 1, 5000])
def test_the_degree_is_the_smallest_that_protects_a_cohort(clients: int) -> None:
    degree, most = SecAgg().rules(clients).degree, 0.0 if clients <= CERTAIN else SECRECY
    found = failure(clients, degree, DEFAULT)
    assert found.secrecy <= most
    assert found.liveness <= LIVENESS
    less = failure(clients, degree - 2, DEFAULT)
    assert less.secrecy > most or less.liveness > LIVENESS
    assert SecAgg().failure(clients) == found


def test_small_cohorts_have_a_complete_graph_and_large_ones_a_sparse_one() -> None:
    assert [SecAgg().rules(clients).degree for clients in (3, 20, SMALL)] == [2, 19, SMALL - 1]
    degrees = [SecAgg().rules(clients).degree for clients in (200, 1000, 10_000, 100_000)]
    assert degrees == [60, 202, 134, 146]  # logarithmic at the end: the paper's claim


@pytest.mark.parametrize("clients", range(3, 60))
def test_a_complete_graph_does_not_fail_with_the_stated_shares(clients: int) -> None:
    for bounds in (DEFAULT, Bounds(2 / 3, 0.3, 1 / 3), Bounds(0.6, 0.1, 0.4), Bounds(1.0, 0.9, 0.0)):
        assert failure(clients, clients - 1, bounds).secrecy == 0
    assert failure(clients, clients - 1, DEFAULT) == (0, 0)
