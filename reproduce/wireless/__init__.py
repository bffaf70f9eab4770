"""Training over radio links that lose messages, with pruned models and one-bit compressive sensing."""
