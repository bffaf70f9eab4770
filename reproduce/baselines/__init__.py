"""Baselines: classic methods, FedAvg on Fashion-MNIST, and PERM's synthetic data."""
