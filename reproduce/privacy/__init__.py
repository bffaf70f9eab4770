"""Accuracy under differential privacy and secure aggregation: dense updates, signs and masks."""
