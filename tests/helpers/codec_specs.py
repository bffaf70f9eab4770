"""Every registered codec as the command line writes it, with settings that suit tiny models."""

from gossamer.parts.codecs import CODECS

SETTINGS = {"topk": "topk:0.2", "subsample": "subsample:0.3", "eden": "eden:2", "one-bit": "one-bit:1"}
"""Codecs whose defaults do not suit tiny models."""

SPECS = [SETTINGS.get(name, name) for name in CODECS]
