"""Federated learning for thin devices and thin links."""

__version__ = "0.1.0"

import types as _types
import typing as _typing

from gossamer.channels import AnyDevice as AnyDevice
from gossamer.channels import Lossy as Lossy
from gossamer.channels import Perfect as Perfect
from gossamer.channels import Receipt as Receipt
from gossamer.channels import Wireless as Wireless
from gossamer.codecs import Codec as Codec
from gossamer.codecs import Dense as Dense
from gossamer.codecs import Drive as Drive
from gossamer.codecs import Eden as Eden
from gossamer.codecs import Feedback as Feedback
from gossamer.codecs import Lift as Lift
from gossamer.codecs import MaskedNoise as MaskedNoise
from gossamer.codecs import OneBit as OneBit
from gossamer.codecs import Retain as Retain
from gossamer.codecs import SampledMask as SampledMask
from gossamer.codecs import Sparse as Sparse
from gossamer.codecs import StochasticSign as StochasticSign
from gossamer.codecs import Subsample as Subsample
from gossamer.codecs import Ternary as Ternary
from gossamer.codecs import TopK as TopK
from gossamer.data import Data as Data
from gossamer.data import Samples as Samples
from gossamer.data import Split as Split
from gossamer.engines import Options as Options
from gossamer.engines import Result as Result
from gossamer.engines import simulate as simulate
from gossamer.errors import ConfigError as ConfigError
from gossamer.errors import GossamerError as GossamerError
from gossamer.errors import PayloadError as PayloadError
from gossamer.errors import RunError as RunError
from gossamer.exchange import Section as Section
from gossamer.forms import Supermask as Supermask
from gossamer.forms import Weights as Weights
from gossamer.method import Exchange as Exchange
from gossamer.method import Method as Method
from gossamer.methods import *
from gossamer.samplers import BySize as BySize
from gossamer.samplers import PowerOfChoice as PowerOfChoice
from gossamer.samplers import RoundRobin as RoundRobin
from gossamer.samplers import Uniform as Uniform
from gossamer.servers import Average as Average
from gossamer.servers import CodedMean as CodedMean
from gossamer.servers import Compare as Compare
from gossamer.servers import MaskAverage as MaskAverage
from gossamer.servers import Mean as Mean
from gossamer.servers import Shuffle as Shuffle
from gossamer.servers import WarmUp as WarmUp
from gossamer.solvers import SGD as SGD
from gossamer.solvers import Adam as Adam
from gossamer.solvers import Constant as Constant
from gossamer.solvers import Cosine as Cosine
from gossamer.solvers import Ditto as Ditto
from gossamer.solvers import Exponential as Exponential
from gossamer.solvers import NotingSGD as NotingSGD
from gossamer.solvers import PerFedAvg as PerFedAvg
from gossamer.solvers import PFedMe as PFedMe
from gossamer.solvers import Probe as Probe
from gossamer.solvers import PruningSGD as PruningSGD
from gossamer.solvers import Steps as Steps
from gossamer.tasks import Task as Task
from gossamer.types import Clock as Clock
from gossamer.types import Layout as Layout
from gossamer.types import Params as Params
from gossamer.types import Part as Part
from gossamer.types import Payload as Payload
from gossamer.types import State as State
from gossamer.views import Bernoulli as Bernoulli
from gossamer.views import Channels as Channels
from gossamer.views import Full as Full
from gossamer.views import Magnitude as Magnitude
from gossamer.views import Personal as Personal
from gossamer.views import Pruned as Pruned
from gossamer.views import PrunedChannels as PrunedChannels
from gossamer.views import Windows as Windows

if not _typing.TYPE_CHECKING:  # which reads imports, and not what is worked out
    __all__ = sorted(
        (n for n, it in globals().items() if not (n.startswith("_") or isinstance(it, _types.ModuleType))),
        key=lambda n: (not n.isupper(), not n[0].isupper(), n),
    )
