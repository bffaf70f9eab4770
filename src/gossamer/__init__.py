"""Federated learning for thin devices and thin links."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach
from gossamer.parts.channels import CHANNELS as CHANNELS
from gossamer.parts.codecs import CODECS as CODECS
from gossamer.parts.samplers import SAMPLERS as SAMPLERS
from gossamer.parts.servers.robust import RULES as RULES

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from gossamer.cli.reopen import load_run as load_run
    from gossamer.cli.reopen import resume as resume
    from gossamer.cli.sweeps import SweepResult as SweepResult
    from gossamer.cli.sweeps import load_sweep as load_sweep
    from gossamer.cli.sweeps import sweep as sweep
    from gossamer.core.channel import AnyDevice as AnyDevice
    from gossamer.core.channel import Receipt as Receipt
    from gossamer.core.codec import Codec as Codec
    from gossamer.core.errors import ConfigError as ConfigError
    from gossamer.core.errors import GossamerError as GossamerError
    from gossamer.core.errors import PayloadError as PayloadError
    from gossamer.core.errors import RunError as RunError
    from gossamer.core.exchange import Section as Section
    from gossamer.core.method import Exchange as Exchange
    from gossamer.core.method import Method as Method
    from gossamer.core.parametrization import Weights as Weights
    from gossamer.core.types import Clock as Clock
    from gossamer.core.types import Layout as Layout
    from gossamer.core.types import Params as Params
    from gossamer.core.types import Part as Part
    from gossamer.core.types import Payload as Payload
    from gossamer.core.types import State as State
    from gossamer.engines.options import Options as Options
    from gossamer.engines.result import Result as Result
    from gossamer.engines.simulate import simulate as simulate
    from gossamer.fleet.device import Device as Device
    from gossamer.fleet.fleet import Fleet as Fleet
    from gossamer.methods import *
    from gossamer.methods.private import private as private
    from gossamer.parts.adapters.lora import LoRA as LoRA
    from gossamer.parts.channels.fleet_links import FleetLinks as FleetLinks
    from gossamer.parts.channels.lossy import Lossy as Lossy
    from gossamer.parts.channels.perfect import Perfect as Perfect
    from gossamer.parts.channels.wireless import Wireless as Wireless
    from gossamer.parts.codecs.dense import Dense as Dense
    from gossamer.parts.codecs.drive import Drive as Drive
    from gossamer.parts.codecs.eden import Eden as Eden
    from gossamer.parts.codecs.feedback import Feedback as Feedback
    from gossamer.parts.codecs.fixed_point import FixedPoint as FixedPoint
    from gossamer.parts.codecs.integers import Int4 as Int4
    from gossamer.parts.codecs.integers import Int8 as Int8
    from gossamer.parts.codecs.klms import KLMS as KLMS
    from gossamer.parts.codecs.masked_noise import MaskedNoise as MaskedNoise
    from gossamer.parts.codecs.noisy_sign import NoisySign as NoisySign
    from gossamer.parts.codecs.on_weights import OnWeights as OnWeights
    from gossamer.parts.codecs.one_bit import OneBit as OneBit
    from gossamer.parts.codecs.private.discrete_gaussian import DiscreteGaussian as DiscreteGaussian
    from gossamer.parts.codecs.private.local_gaussian import LocalGaussian as LocalGaussian
    from gossamer.parts.codecs.private.poisson_binomial import PoissonBinomial as PoissonBinomial
    from gossamer.parts.codecs.private.skellam import Skellam as Skellam
    from gossamer.parts.codecs.qsgd import QSGD as QSGD
    from gossamer.parts.codecs.quic_fl import QuicFL as QuicFL
    from gossamer.parts.codecs.retain import Retain as Retain
    from gossamer.parts.codecs.sampled_mask import SampledMask as SampledMask
    from gossamer.parts.codecs.sign import StochasticSign as StochasticSign
    from gossamer.parts.codecs.sparse import Sparse as Sparse
    from gossamer.parts.codecs.subsample import Subsample as Subsample
    from gossamer.parts.codecs.ternary import Ternary as Ternary
    from gossamer.parts.codecs.topk import TopK as TopK
    from gossamer.parts.downlinks.delta import Delta as Delta
    from gossamer.parts.parametrizations.supermask import Supermask as Supermask
    from gossamer.parts.pruning_schedule import Progressive as Progressive
    from gossamer.parts.samplers.by_size import BySize as BySize
    from gossamer.parts.samplers.poisson import Poisson as Poisson
    from gossamer.parts.samplers.power_of_choice import PowerOfChoice as PowerOfChoice
    from gossamer.parts.samplers.round_robin import RoundRobin as RoundRobin
    from gossamer.parts.samplers.uniform import Uniform as Uniform
    from gossamer.parts.schedules.deadline import Deadline as Deadline
    from gossamer.parts.schedules.fedasync import FedAsync as FedAsync
    from gossamer.parts.schedules.fedbuff import FedBuff as FedBuff
    from gossamer.parts.schedules.synchronous import Synchronous as Synchronous
    from gossamer.parts.secure.secagg import SecAgg as SecAgg
    from gossamer.parts.servers.adaptive_clip import AdaptiveClip as AdaptiveClip
    from gossamer.parts.servers.average import Average as Average
    from gossamer.parts.servers.average import MaskAverage as MaskAverage
    from gossamer.parts.servers.gradient_similarity import GradientSimilarity as GradientSimilarity
    from gossamer.parts.servers.mean import Mean as Mean
    from gossamer.parts.servers.model_rotation import ModelRotation as ModelRotation
    from gossamer.parts.servers.model_rotation import WarmUp as WarmUp
    from gossamer.parts.servers.private import PrivateMean as PrivateMean
    from gossamer.parts.servers.private_tree import TreeMean as TreeMean
    from gossamer.parts.servers.robust.bucketing import Bucketing as Bucketing
    from gossamer.parts.servers.robust.centered_clipping import CenteredClipping as CenteredClipping
    from gossamer.parts.servers.robust.clip import Clip as Clip
    from gossamer.parts.servers.robust.geometric_median import GeometricMedian as GeometricMedian
    from gossamer.parts.servers.robust.krum import Krum as Krum
    from gossamer.parts.servers.robust.median import Median as Median
    from gossamer.parts.servers.robust.multi_krum import MultiKrum as MultiKrum
    from gossamer.parts.servers.robust.server import Robust as Robust
    from gossamer.parts.servers.robust.trimmed_mean import TrimmedMean as TrimmedMean
    from gossamer.parts.servers.sparse_average import MajorityAverage as MajorityAverage
    from gossamer.parts.servers.sparse_average import PrunedAverage as PrunedAverage
    from gossamer.parts.servers.sum_then_decode import SumThenDecode as SumThenDecode
    from gossamer.parts.solvers.adam import Adam as Adam
    from gossamer.parts.solvers.ditto import Ditto as Ditto
    from gossamer.parts.solvers.dp_sgd import DPSGD as DPSGD
    from gossamer.parts.solvers.gradient_probe import GradientProbe as GradientProbe
    from gossamer.parts.solvers.per_fedavg import PerFedAvg as PerFedAvg
    from gossamer.parts.solvers.pfedme import PFedMe as PFedMe
    from gossamer.parts.solvers.pruning import PruningSGD as PruningSGD
    from gossamer.parts.solvers.schedules import Constant as Constant
    from gossamer.parts.solvers.schedules import Cosine as Cosine
    from gossamer.parts.solvers.schedules import Exponential as Exponential
    from gossamer.parts.solvers.schedules import Steps as Steps
    from gossamer.parts.solvers.sgd import SGD as SGD
    from gossamer.parts.solvers.snapshot import SnapshotSGD as SnapshotSGD
    from gossamer.parts.solvers.sparse_sgd import SparseSGD as SparseSGD
    from gossamer.parts.solvers.threshold_sgd import ThresholdSGD as ThresholdSGD
    from gossamer.parts.views.bernoulli import Bernoulli as Bernoulli
    from gossamer.parts.views.full import Full as Full
    from gossamer.parts.views.largest_weights import LargestWeights as LargestWeights
    from gossamer.parts.views.magnitude_pruned import MagnitudePruned as MagnitudePruned
    from gossamer.parts.views.personal_mask import PersonalMask as PersonalMask
    from gossamer.parts.views.pruned import Pruned as Pruned
    from gossamer.parts.views.pruned_channels import PrunedChannels as PrunedChannels
    from gossamer.parts.views.width_slice import WidthSlice as WidthSlice
    from gossamer.parts.views.windows import Windows as Windows
    from gossamer.tasks.data.partition import Split as Split
    from gossamer.tasks.data.samples import Data as Data
    from gossamer.tasks.data.samples import Samples as Samples
    from gossamer.tasks.metrics import Metric as Metric
    from gossamer.tasks.task import Task as Task

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, CHANNELS, CODECS, SAMPLERS, RULES)
