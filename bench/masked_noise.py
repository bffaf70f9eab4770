"""Folding masked noise: its cost beside drawing the noise alone, and on a GPU beside plain tensor operations.

    python bench/masked_noise.py [--millions 11] [--device cuda]

On a CPU, one core: the seconds to fold one message, over those to draw as many float32 uniforms from NumPy's Philox,
both in turns; at most 3 is asked for. On a GPU: milliseconds to fold 10 messages, with the kernel and without; at most
0.5 with it, for 11 million entries. There the sums are first compared with the CPU's, bit for bit.
"""

import argparse
import statistics

import numpy as np
import stopwatch
import torch
from stopwatch import milliseconds
from torch import Tensor

from gossamer.codecs.masked_noise import MaskedNoise
from gossamer.codecs.packing import unbits
from gossamer.random import Key, fold, key, uniform
from gossamer.types import Layout, Payload

CLIENTS = 10
WEIGHTS = [0.3 + client / 7 for client in range(CLIENTS)]
Messages = list[tuple[Key, Payload, float]]


def messages(codec: MaskedNoise, layout: Layout, device: str) -> Messages:
    """What ten clients send."""
    made = []
    for client, weight in enumerate(WEIGHTS):
        at = fold(key(1), "client", client)
        change = (uniform(fold(at, "change"), layout.size, device=device) - 0.5) * 0.01
        made.append((at, codec.encode(change, layout, at), weight))
    return made


def folded(codec: MaskedNoise, acc: Tensor, layout: Layout, sent: Messages) -> Tensor:
    for at, payload, weight in sent:
        codec.fold(acc, payload, layout, at, weight)
    return acc


def plain(codec: MaskedNoise, acc: Tensor, sent: Messages) -> Tensor:
    """The same in plain tensor operations, whole vectors at a time."""
    for at, payload, weight in sent:
        noise = (2 * uniform(fold(at, "noise"), acc.numel(), device=acc.device) - 1) * codec.alpha
        acc += weight * torch.where(unbits(payload["mask"], acc.numel()), noise, -noise if codec.signed else 0.0)
    return acc


def on_cpu(codec: MaskedNoise, layout: Layout, repeats: int = 15) -> None:
    torch.set_num_threads(1)
    acc, (at, payload, weight) = torch.zeros(layout.size), messages(codec, layout, "cpu")[0]
    draw, fold_one = [], []
    for _ in range(repeats):
        source = np.random.Generator(np.random.Philox(key=1))
        draw.append(stopwatch.on_cpu(lambda: source.random(layout.size, dtype=np.float32)))  # noqa: B023
        fold_one.append(stopwatch.on_cpu(lambda: codec.fold(acc, payload, layout, at, weight)))
    ratios = sorted(f / d for f, d in zip(fold_one, draw, strict=True))
    print(
        f"{codec}: draw {min(draw):.1f} ms, fold {min(fold_one):.1f} ms at best; "
        f"ratio {statistics.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def on_gpu(codec: MaskedNoise, layout: Layout) -> None:
    sent = messages(codec, layout, "cuda")
    here = [(at, {name: array.cpu() for name, array in payload.items()}, weight) for at, payload, weight in sent]
    acc = torch.zeros(layout.size, device="cuda")
    found, wanted = folded(codec, acc, layout, sent).cpu(), folded(codec, torch.zeros(layout.size), layout, here)
    if not torch.equal(found, wanted):
        raise SystemExit(f"{codec}: {int((found != wanted).sum()):,} sums differ from the CPU's")
    fused = milliseconds(lambda: folded(codec, acc, layout, sent), "cuda")
    plainly = milliseconds(lambda: plain(codec, acc, sent), "cuda")
    print(f"{codec}: {CLIENTS} folds {fused:.3f} ms, plainly {plainly:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of folding masked noise.")
    parser.add_argument("--millions", type=float, default=11)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    layout = Layout((("w", torch.Size([int(given.millions * 1e6)])),))
    for signed in (False, True):
        (on_gpu if given.device == "cuda" else on_cpu)(MaskedNoise(signed=signed), layout)


if __name__ == "__main__":
    main()
