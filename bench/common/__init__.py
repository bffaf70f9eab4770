"""What the comparisons ``speed`` and ``board`` share."""
