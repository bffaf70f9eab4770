"""Reproductions of published experiments, one package per paper. ``python -m reproduce`` lists them."""
