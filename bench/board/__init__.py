"""The speed board: published workloads of other simulators, measured here beside a plain loop and pfl-research."""
