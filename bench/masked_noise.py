"""Measure the aggregation of masked noise, relative to drawing the noise or to plain tensor operations.

    python bench/masked_noise.py [--millions 11] [--device cuda]

Messages are of two kinds: those of the codec over one vector, and those of a model, as methods use it. The model has
the same entries in 20 weights, and norms between them that are sent dense.

On one CPU core: the time to fold one message of either kind, relative to that of drawing the same number of float32
uniforms from NumPy's Philox, in turns. The target is a ratio of at most 3. On a GPU: the time to fold 10 messages, with
the fused kernel and without it. The target is at most 0.5 ms with the kernel, for 11 million entries. The sums are
compared with the CPU's bit by bit first.
"""

import argparse
import statistics

import numpy as np
import stopwatch
import torch
from stopwatch import milliseconds
from torch import Tensor

from gossamer.core.bits import unbits
from gossamer.core.codec import Coding
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs import Codec, OnWeights
from gossamer.parts.codecs.masked_noise import MaskedNoise

ALPHA = 0.01
CLIENTS = 10
WEIGHTS = [0.3 + client / 7 for client in range(CLIENTS)]
TENSORS, NORM = 20, 256
Messages = list[tuple[Key, Payload, float]]


def vector(entries: int) -> Layout:
    """Return a layout with all entries in one tensor."""
    return Layout((("w", torch.Size([entries])),))


def model(entries: int) -> Layout:
    """Return a layout with the same entries in weights of equal size, and a norm after each."""
    weight, norm = torch.Size([1, entries // TENSORS]), torch.Size([NORM])
    return Layout(tuple((f"{n:02}.{name}", s) for n in range(TENSORS) for name, s in (("a", weight), ("b", norm))))


def messages(codec: Codec, layout: Layout, device: str) -> Messages:
    """Return the messages of ten clients."""
    made = []
    for client, weight in enumerate(WEIGHTS):
        at = fold(key(1), "client", client)
        change = (uniform(fold(at, "change"), layout.size, device=device) - 0.5) * 0.01
        made.append((at, codec.encode(change, Coding(layout, at)), weight))
    return made


def folded(codec: Codec, acc: Tensor, layout: Layout, sent: Messages) -> Tensor:
    for at, payload, weight in sent:
        codec.fold(acc, payload, Coding(layout, at), weight)
    return acc


def plain(codec: MaskedNoise, acc: Tensor, sent: Messages) -> Tensor:
    """Fold the messages by plain tensor operations on whole vectors."""
    for at, payload, weight in sent:
        noise = (2 * uniform(fold(at, "noise"), acc.numel(), device=acc.device) - 1) * ALPHA
        acc += weight * torch.where(unbits(payload["mask"], acc.numel()), noise, -noise if codec.signed else 0.0)
    return acc


def on_cpu(codec: MaskedNoise, entries: int, repeats: int = 15) -> None:
    torch.set_num_threads(1)
    kinds: dict[str, tuple[Codec, Layout]] = {
        "vector": (codec, vector(entries)),
        "model": (OnWeights(codec), model(entries)),
    }
    sent = {name: messages(mine, layout, "cpu")[:1] for name, (mine, layout) in kinds.items()}
    sums = {name: torch.zeros(layout.size) for name, (_, layout) in kinds.items()}
    draw: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        source = np.random.Generator(np.random.Philox(key=1))
        draw.append(stopwatch.on_cpu(lambda: source.random(entries, dtype=np.float32)))  # noqa: B023
        for name, (mine, layout) in kinds.items():
            times[name].append(stopwatch.on_cpu(lambda: folded(mine, sums[name], layout, sent[name])))  # noqa: B023
    print(f"{codec}: draw {min(draw):.1f} ms (minimum)")
    for name, took in times.items():
        ratios = sorted(f / d for f, d in zip(took, draw, strict=True))
        ratio = f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  fold {name}: {min(took):.1f} ms (minimum); {ratio}")


def on_gpu(codec: MaskedNoise, entries: int) -> None:
    print(codec)
    layout = vector(entries)
    fused, on_weights = on_gpu_folds(codec, layout), on_gpu_folds(OnWeights(codec), model(entries))
    acc, sent = torch.zeros(entries, device="cuda"), messages(codec, layout, "cuda")
    unfused = milliseconds(lambda: plain(codec, acc, sent), "cuda")
    print(f"  {CLIENTS} folds: vector {fused:.3f} ms, model {on_weights:.3f} ms, plain operations {unfused:.3f} ms")


def on_gpu_folds(codec: Codec, layout: Layout) -> float:
    """Return the milliseconds to fold all messages, after a comparison of their sum with the CPU's."""
    sent = messages(codec, layout, "cuda")
    here = [(at, {name: array.cpu() for name, array in payload.items()}, weight) for at, payload, weight in sent]
    acc = torch.zeros(layout.size, device="cuda")
    found, wanted = folded(codec, acc, layout, sent).cpu(), folded(codec, torch.zeros(layout.size), layout, here)
    if not torch.equal(found, wanted):
        raise SystemExit(f"{codec}: {int((found != wanted).sum()):,} sums differ from the CPU's")
    return milliseconds(lambda: folded(codec, acc, layout, sent), "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the aggregation of masked noise.")
    parser.add_argument("--millions", type=float, default=11)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    entries = int(given.millions * 1e6) // TENSORS * TENSORS
    for signed in (False, True):
        (on_gpu if given.device == "cuda" else on_cpu)(MaskedNoise(signed=signed, alpha=ALPHA, coded=False), entries)


if __name__ == "__main__":
    main()
