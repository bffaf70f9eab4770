"""Differential privacy: the epsilon of mechanisms over the rounds of a run, and the noise that a budget takes."""
