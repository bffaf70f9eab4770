"""The smallest groups of honest clients whose sum an active server can open, by cohort and colluding clients.

    python bench/secure_groups.py

``cut`` is the number of colluding clients that a maximum flow finds necessary to cut off clients of a list of survivors
that is as thin as clients accept. Version 0.2 opened one client of each of these cohorts, without any colluding client.
"""

from gossamer.analysis.secure_groups import smallest_cut, smallest_group, thinned
from gossamer.parts.secure import SecAgg

COHORTS = (10, 34, 50, 100, 200, 500, 1000)
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3)


def main() -> None:
    """Print the table."""
    print(f"| clients | degree | quorum | cut | {' | '.join(f'{share:.0%} collude' for share in SHARES)} |")
    print(f"|{'---|' * (4 + len(SHARES))}")
    for clients in COHORTS:
        rules = SecAgg().rules(clients)
        for degree in dict.fromkeys((rules.degree, clients - 1)):
            protocol = SecAgg(neighbours=None if degree == rules.degree else clients + clients % 2)
            rules = protocol.rules(clients)
            cut = "-" if degree == clients - 1 else str(smallest_cut(*thinned(rules)))
            groups = (str(smallest_group(rules, int(share * clients + 1e-9))) for share in SHARES)
            print(f"| {clients} | {rules.degree} | {rules.quorum} | {cut} | {' | '.join(groups)} |", flush=True)


if __name__ == "__main__":
    main()
