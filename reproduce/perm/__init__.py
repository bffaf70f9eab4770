"""PERM (Deng et al., 2023, https://arxiv.org/abs/2310.17761): personalized empirical risk minimization."""
