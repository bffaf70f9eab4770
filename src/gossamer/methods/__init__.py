"""The recipes: each a handful of lines that reads like its paper.

A recipe is a function with typed, defaulted parameters that returns a :class:`~gossamer.method.Method`. Its
parameters are flags of ``gossamer run``; what they mean is told by its docstring, or by that of the part they go to.
"""

from collections.abc import Callable

from gossamer.method import Method
from gossamer.methods.averaging import (
    centralised,
    ditto,
    fedavg,
    fedavg_tuned,
    fedprox,
    fedsgd,
    local,
    per_fedavg,
    pfedme,
)
from gossamer.methods.compressed import (
    drive,
    eden,
    fedmrn,
    fedmrns,
    fedpm,
    fedsparsify,
    signsgd,
    subsample,
    terngrad,
    topk,
)
from gossamer.methods.mixtures import perm, perm_two_stage
from gossamer.methods.sparse import fedspa, sub_fedavg
from gossamer.methods.submodels import fedrolex, heterofl, submodel_random, submodel_rolling
from gossamer.methods.thin_links import onebit_cs

__all__ = [
    "METHODS",
    "centralised",
    "ditto",
    "drive",
    "eden",
    "fedavg",
    "fedavg_tuned",
    "fedmrn",
    "fedmrns",
    "fedpm",
    "fedprox",
    "fedrolex",
    "fedsgd",
    "fedspa",
    "fedsparsify",
    "heterofl",
    "local",
    "onebit_cs",
    "per_fedavg",
    "perm",
    "perm_two_stage",
    "pfedme",
    "signsgd",
    "sub_fedavg",
    "submodel_random",
    "submodel_rolling",
    "subsample",
    "terngrad",
    "topk",
]

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedsgd": fedsgd,
    "fedprox": fedprox,
    "local": local,
    "centralised": centralised,
    "ditto": ditto,
    "fedavg-tuned": fedavg_tuned,
    "per-fedavg": per_fedavg,
    "pfedme": pfedme,
    "fedmrn": fedmrn,
    "fedmrns": fedmrns,
    "fedpm": fedpm,
    "fedsparsify": fedsparsify,
    "signsgd": signsgd,
    "topk": topk,
    "subsample": subsample,
    "terngrad": terngrad,
    "drive": drive,
    "eden": eden,
    "submodel-random": submodel_random,
    "submodel-rolling": submodel_rolling,
    "heterofl": heterofl,
    "fedrolex": fedrolex,
    "fedspa": fedspa,
    "sub-fedavg": sub_fedavg,
    "onebit-cs": onebit_cs,
    "perm": perm,
    "perm-two-stage": perm_two_stage,
}
"""Recipes by the name that the command line uses."""
