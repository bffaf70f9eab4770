"""Networks for text: a decoder-only transformer, and the LSTM of FedMRN.

``gpt`` gives scores of the next character at every position of a sequence. It has the layout of GPT-2 (Radford et al.,
Language Models are Unsupervised Multitask Learners, 2019): learned embeddings of characters and positions, blocks with
a norm before each of two parts, and a norm before the output layer. With N for a layer norm, one block is

    x <- x + out(attention(qkv(N x)))        each position attends to itself and to earlier ones
    x <- x + down(gelu(up(N x)))             four times as wide inside

Linear layers have no biases, and the output layer has its own weights. There is no dropout. Weights start as
N(0, 0.02^2); those of ``out`` and ``down`` are divided by the square root of twice the number of layers, so that the
variance of the residual stream does not grow with depth.

``gpt2`` builds the network of the same size from ``transformers``. It has biases, and its output layer shares the
weights of the embedding.

``lstm`` is FedMRN's recurrent network for Shakespeare: from 80 characters to the scores of the next one. It has an
embedding of size 8, one layer of 256 LSTM units, dropout, and a linear layer on the last state, all without biases. The
LSTM is two linear layers and a loop over time. Unlike PyTorch's LSTM, it can be stacked over clients and compiled, and
FedMRN can mask its linear weights. On a GPU a loop over time is slow in eager mode, so with dropout it uses cuDNN's
LSTM there, with the same weights. Linear weights start as N(0, 0.01^2), embeddings as N(0, 1). With smaller embeddings,
hundreds of steps learn nothing.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from gossamer.core.errors import require, wrong
from gossamer.core.extras import need
from gossamer.core.fields import CheckedFields

INIT_STD = 0.02
INSIDE = 4


class Attention(nn.Module):
    """Causal self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position reads from itself and earlier ones (batch x time x width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention, then two linear layers, each with a norm before it and a residual connection around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, INSIDE * width, bias=False)
        self.down = nn.Linear(INSIDE * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream (batch x time x width) after this block."""
        x = x + self.attention(self.norm1(x))
        after: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return after


class GPT(nn.Module):
    """Map rows of at most ``length`` character indices to scores of the next character at each position."""

    def __init__(self, classes: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                ends = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=INIT_STD / math.sqrt(2 * layers) if ends else INIT_STD)

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores (batch x time x characters)."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.characters(characters) + self.positions(positions)
        scores: Tensor = self.output(self.norm(self.blocks(x)))
        return scores


@dataclass(frozen=True)
class TransformerSize(CheckedFields, ABC):
    """The size of a transformer.

    Args:
        layers: number of blocks
        width: channels of the residual stream
        heads: attention heads
    """

    layers: int = 4
    width: int = 128
    heads: int = 4

    def __post_init__(self) -> None:
        require(
            (self.layers >= 1, wrong(self, "layers", "must be at least 1")),
            (self.heads >= 1, wrong(self, "heads", "must be at least 1")),
            (
                self.width >= 1 and (self.heads < 1 or self.width % self.heads == 0),
                wrong(self, "width", "must be a positive multiple of heads"),
            ),
        )

    @abstractmethod
    def build(self, shape: torch.Size, classes: int) -> nn.Module:
        """Build the network for sequences of ``shape[0]`` characters."""


@dataclass(frozen=True)
class GPTSize(TransformerSize):
    """The size of a transformer, as in ``gpt:6,256,8`` or ``gpt:layers=2``."""

    def build(self, shape: torch.Size, classes: int) -> nn.Module:
        """Build the network for sequences of ``shape[0]`` characters."""
        return GPT(classes, shape[0], self.layers, self.width, self.heads)


@dataclass(frozen=True)
class GPT2Size(TransformerSize):
    """The size of the transformer of ``transformers``."""

    def build(self, shape: torch.Size, classes: int) -> nn.Module:
        """Build ``GPT2LMHeadModel`` from a configuration, without a download and without dropout."""
        need("transformers")
        from transformers import GPT2Config, GPT2LMHeadModel

        size = {"n_positions": shape[0], "n_embd": self.width, "n_layer": self.layers, "n_head": self.heads}
        no_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        no_ends = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
        model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=classes, **size, **no_dropout, **no_ends))
        return model


EMBEDDING = 8
UNITS = 256
DROPOUT = 0.5
LSTM_STD = 0.01


class LSTM(nn.Module):
    """Map rows of character indices to scores of the next character; gates have PyTorch's order."""

    def __init__(self, classes: int, *, dropout: float = DROPOUT) -> None:
        require((0 <= dropout < 1, f"LSTM: dropout must be in [0, 1), got {dropout}"))
        super().__init__()
        self.embedding = nn.Embedding(classes, EMBEDDING)
        self.input = nn.Linear(EMBEDDING, 4 * UNITS, bias=False)
        self.hidden = nn.Linear(UNITS, 4 * UNITS, bias=False)
        self.output = nn.Linear(UNITS, classes, bias=False)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        for linear in (self.input, self.hidden, self.output):
            nn.init.normal_(linear.weight, std=LSTM_STD)

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores, one row per row of characters."""
        scores: Tensor = self.output(self.drop(self.states(self.embedding(characters))))
        return scores

    def states(self, x: Tensor) -> Tensor:
        """Return the state after the last vector of ``x`` (batch x time x embedding)."""
        stacked = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(x)
        if x.is_cuda and isinstance(self.drop, nn.Dropout) and not stacked and torch.backends.cudnn.enabled:
            return self._states_by_cudnn(x)
        units = self.hidden.weight.shape[1]  # fewer than UNITS in a narrower network
        hidden = cell = x.new_zeros(x.shape[0], units)
        for pushed in self.input(x).unbind(1):
            hidden, cell = step(pushed + self.hidden(hidden), cell)
        return hidden

    def _states_by_cudnn(self, x: Tensor) -> Tensor:
        weights = [self.input.weight, self.hidden.weight]
        begin = x.new_zeros(1, x.shape[0], weights[1].shape[1])
        with warnings.catch_warnings():  # cuDNN copies the weights, which is cheap
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            _, hidden, _ = torch.lstm(x, (begin, begin), weights, False, 1, 0.0, True, False, True)
        last: Tensor = hidden[0]
        return last


def step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Run one time step: return the next state and the next cell."""
    into, keep, new, out = gates.chunk(4, dim=-1)
    cell = keep.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def lstm(shape: torch.Size, classes: int, *, dropout: float = DROPOUT) -> nn.Module:
    """Build the LSTM; the number of characters is the number of classes."""
    return LSTM(classes, dropout=dropout)
