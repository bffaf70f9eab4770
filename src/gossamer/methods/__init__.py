"""Recipes: one short function per method, which composes the method from parts.

A recipe is a function with typed parameters and defaults that returns a ``Method``. Its parameters are the flags of
``gossamer run``. The help of a flag is the line ``name: meaning`` in the docstring of the recipe, or of the part that
takes the parameter. ``gossamer.methods.registry`` lists all methods.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach
from gossamer.methods.registry import METHODS as METHODS

if TYPE_CHECKING:
    from gossamer.methods.adapters import ffa_lora as ffa_lora
    from gossamer.methods.adapters import lora as lora
    from gossamer.methods.averaging import centralised as centralised
    from gossamer.methods.averaging import ditto as ditto
    from gossamer.methods.averaging import fedavg as fedavg
    from gossamer.methods.averaging import fedavg_tuned as fedavg_tuned
    from gossamer.methods.averaging import fedprox as fedprox
    from gossamer.methods.averaging import fedsgd as fedsgd
    from gossamer.methods.averaging import local as local
    from gossamer.methods.averaging import per_fedavg as per_fedavg
    from gossamer.methods.averaging import pfedme as pfedme
    from gossamer.methods.clustered import Clusters as Clusters
    from gossamer.methods.clustered import ifca as ifca
    from gossamer.methods.composition import compose as compose
    from gossamer.methods.compressed import drive as drive
    from gossamer.methods.compressed import eden as eden
    from gossamer.methods.compressed import fedmrn as fedmrn
    from gossamer.methods.compressed import fedmrns as fedmrns
    from gossamer.methods.compressed import fedpm as fedpm
    from gossamer.methods.compressed import signsgd as signsgd
    from gossamer.methods.compressed import subsample as subsample
    from gossamer.methods.compressed import terngrad as terngrad
    from gossamer.methods.compressed import topk as topk
    from gossamer.methods.compressed import z_signfedavg as z_signfedavg
    from gossamer.methods.control_variates import Scaffold as Scaffold
    from gossamer.methods.control_variates import ScaffoldSGD as ScaffoldSGD
    from gossamer.methods.control_variates import scaffold as scaffold
    from gossamer.methods.dynamic_regularization import FedDyn as FedDyn
    from gossamer.methods.dynamic_regularization import FedDynSGD as FedDynSGD
    from gossamer.methods.dynamic_regularization import feddyn as feddyn
    from gossamer.methods.error_feedback import EF21 as EF21
    from gossamer.methods.error_feedback import MeanOfEstimates as MeanOfEstimates
    from gossamer.methods.error_feedback import ef21 as ef21
    from gossamer.methods.low_rank import flora as flora
    from gossamer.methods.low_rank import lora_truncated as lora_truncated
    from gossamer.methods.mixtures import perm as perm
    from gossamer.methods.mixtures import perm_two_stage as perm_two_stage
    from gossamer.methods.normalized_averaging import FedNova as FedNova
    from gossamer.methods.normalized_averaging import FedNovaSGD as FedNovaSGD
    from gossamer.methods.normalized_averaging import fednova as fednova
    from gossamer.methods.private_averaging import dp_fedavg as dp_fedavg
    from gossamer.methods.private_averaging import dp_ftrl as dp_ftrl
    from gossamer.methods.quantized import int8 as int8
    from gossamer.methods.quantized import qsgd as qsgd
    from gossamer.methods.quantized import quic_fl as quic_fl
    from gossamer.methods.recipes import recipe as recipe
    from gossamer.methods.secure import secure_changes as secure_changes
    from gossamer.methods.secure import secured as secured
    from gossamer.methods.seeds import decomfl as decomfl
    from gossamer.methods.seeds import fedkseed as fedkseed
    from gossamer.methods.seeds import hiso as hiso
    from gossamer.methods.server_optimizers import ServerOptimizer as ServerOptimizer
    from gossamer.methods.server_optimizers import fedadagrad as fedadagrad
    from gossamer.methods.server_optimizers import fedadam as fedadam
    from gossamer.methods.server_optimizers import fedavgm as fedavgm
    from gossamer.methods.server_optimizers import fedyogi as fedyogi
    from gossamer.methods.side_information import klms as klms
    from gossamer.methods.sparse import fedspa as fedspa
    from gossamer.methods.sparse import sub_fedavg as sub_fedavg
    from gossamer.methods.sparsified import fedavg_pruned as fedavg_pruned
    from gossamer.methods.sparsified import fedsparsify as fedsparsify
    from gossamer.methods.submodels import fedrolex as fedrolex
    from gossamer.methods.submodels import fiarse as fiarse
    from gossamer.methods.submodels import heterofl as heterofl
    from gossamer.methods.submodels import submodel_random as submodel_random
    from gossamer.methods.submodels import submodel_rolling as submodel_rolling
    from gossamer.methods.thin_links import onebit_cs as onebit_cs
    from gossamer.methods.thin_links import onebit_cs_paper as onebit_cs_paper

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, METHODS)
