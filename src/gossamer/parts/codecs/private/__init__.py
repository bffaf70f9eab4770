"""Codecs with differential privacy: clients clip their updates and add noise before they send them.

    discrete_gaussian, skellam   distributed privacy: whole-number noise of all clients adds up in the sum, which is all
                                 that secure aggregation reveals
    poisson_binomial             random bits whose probabilities follow the update, alone or under secure aggregation
    local_gaussian               local privacy: noise before any other codec

``renyi`` and ``poisson_binomial_renyi`` have the Rényi divergences, ``tables`` the exact draws, and ``rounding`` the
rounding that keeps norms bounded.
"""
