"""Registered codecs as the command line writes them, with settings that suit tiny models."""

from gossamer.parts.codecs import CODECS

SETTINGS = {"topk": "topk:0.2", "subsample": "subsample:0.3", "eden": "eden:2", "one-bit": "one-bit:1"}
"""Codecs whose defaults do not suit tiny models."""

SUMMED = {"discrete-gaussian", "skellam"}
"""Codecs whose messages may be seen only as sums, so they need secure aggregation."""

SPECS = [SETTINGS.get(name, name) for name, kind in CODECS.items() if not kind().private]
"""Codecs that encode any part of a model. Those with differential privacy encode whole updates."""
