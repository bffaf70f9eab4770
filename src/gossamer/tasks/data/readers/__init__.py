"""Readers, one per file format. A damaged, truncated or wrong file is refused with its name."""
