"""The smallest groups that an active server can open: closed forms against all cases of small cohorts, and flows."""

from itertools import combinations, product

import numpy as np
import pytest

from gossamer.analysis.secure_groups import smallest_cut, smallest_group, smallest_opened, thinned
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.rules import Bounds, Graph, Rules, kept, needed, quorum


def complete(clients: int, threshold: float, colluding: float = 0.0) -> Rules:
    least = quorum(clients, Bounds(threshold, colluding, 0.0))
    return Rules(clients, clients - 1, least, least)


@pytest.mark.parametrize("threshold", [0.51, 2 / 3, 0.8, 1.0])
@pytest.mark.parametrize("clients", range(3, 13))
def test_the_closed_form_of_complete_graphs_is_what_all_cases_give(clients: int, threshold: float) -> None:
    rules = complete(clients, threshold)
    bad = 0
    while 2 * rules.quorum > clients + bad and bad < (4 if clients < 9 else 2):
        assert smallest_group(rules, bad) == rules.quorum - bad == smallest_opened(rules, bad)
        bad += 1


@pytest.mark.parametrize(("clients", "degree"), [(7, 4), (8, 4), (9, 4), (9, 6), (10, 4), (10, 6), (11, 6), (12, 8)])
@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_no_case_of_a_sparse_graph_is_below_the_bound(clients: int, degree: int, colluding: int) -> None:
    least = quorum(clients, Bounds(0.6, colluding / clients, 0.0))
    rules = Rules(clients, degree, needed(0.6, degree + 1), least)
    assert smallest_opened(rules, colluding) >= smallest_group(rules, colluding)


def opened_with_two_lists(rules: Rules, colluding: int) -> int:
    """The smallest number of clients that can be opened if each client agrees to any list, and says so once.

    Colluding clients are the last ones, and agree to all lists. All pairs of lists, and all choices of who agrees to
    which, are tried. A complete graph: what is open follows from which secrets have enough shares.
    """
    clients, honest = range(rules.clients), range(rules.clients - colluding)
    lists = [set(chosen) for size in clients for chosen in combinations(clients, size + 1) if size + 1 >= rules.quorum]
    least = rules.clients
    for one, other in combinations(lists, 2):
        for votes in product((0, 1, 2), repeat=len(honest)):
            agreed = [{c for c in honest if votes[c] == n and c in those} for n, those in ((1, one), (2, other))]
            tellers = [len(those) + colluding >= rules.quorum for those in agreed]
            seeds, keys = (
                {
                    c: sum(
                        len(those) for n, those in enumerate(agreed) if tellers[n] and ((c in (one, other)[n]) == own)
                    )
                    + colluding
                    for c in honest
                }
                for own in (True, False)
            )
            bare = {c for c in honest if seeds[c] >= rules.needed}
            exposed = {c for c in honest if keys[c] >= rules.needed}
            if bare & exposed:
                return 1
            hidden = set(honest) - exposed  # all masks between these are unknown
            if hidden and hidden <= bare:
                least = min(least, len(hidden))
    return least


@pytest.mark.parametrize(("clients", "least", "colluding"), [(3, 2, 0), (4, 3, 1), (5, 3, 0), (5, 4, 1), (5, 4, 2)])
def test_two_lists_open_no_less_than_one_as_long_as_quorums_meet(clients: int, least: int, colluding: int) -> None:
    rules = Rules(clients, clients - 1, least, least)
    assert opened_with_two_lists(rules, colluding) == smallest_group(rules, colluding) == least - colluding


@pytest.mark.parametrize(("clients", "least", "colluding"), [(4, 2, 0), (4, 3, 2), (5, 3, 1)])
def test_two_lists_open_one_client_where_quorums_need_not_meet(clients: int, least: int, colluding: int) -> None:
    rules = Rules(clients, clients - 1, least, least)
    assert opened_with_two_lists(rules, colluding) == smallest_group(rules, colluding) == 1


@pytest.mark.parametrize("clients", [34, 50, 100, 200, 500, 1000])
def test_with_the_stated_share_of_colluding_clients_the_group_is_the_quorum_without_them(clients: int) -> None:
    rules, bad = SecAgg().rules(clients), clients // 10
    assert smallest_group(rules, bad) == rules.quorum - bad
    assert smallest_group(rules, bad) > clients / 2


@pytest.mark.parametrize("clients", [101, 200, pytest.param(500, marks=pytest.mark.slow)])
def test_the_largest_flow_through_a_thinned_ring_is_what_the_check_of_clients_leaves(clients: int) -> None:
    rules = SecAgg().rules(clients)
    graph, survivors, one, other = thinned(rules)
    assert graph.sound(survivors, rules.needed) == ""
    assert smallest_cut(graph, survivors, one, other) >= 2 * kept(rules.degree // 2) > clients // 10


def test_the_flow_of_a_ring_is_its_degree() -> None:
    graph = Graph(20, 6, bytes(32))
    assert smallest_cut(graph, np.ones(20, np.bool_), graph.ring[0], graph.ring[10]) == 6
