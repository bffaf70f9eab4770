"""Folding masked noise: its cost beside drawing the noise alone, and on a GPU beside plain tensor operations.

    python bench/masked_noise.py [--millions 11] [--device cuda]

Folded are messages of the codec alone, over one vector, and of a model's, as methods have them: the same entries in 20
weights with norms between them, which go dense in the same message.

On a CPU, one core: the seconds to fold one message of either kind, over those to draw as many float32 uniforms from
NumPy's Philox, all in turns; at most 3 is asked for. On a GPU: milliseconds to fold 10 messages, with the kernel and
without; at most 0.5 with it, for 11 million entries. There the sums are first compared with the CPU's, bit for bit.
"""

import argparse
import statistics

import numpy as np
import stopwatch
import torch
from stopwatch import milliseconds
from torch import Tensor

from gossamer.core.bits import unbits
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs import Codec, OnWeights
from gossamer.parts.codecs.masked_noise import MaskedNoise

CLIENTS = 10
WEIGHTS = [0.3 + client / 7 for client in range(CLIENTS)]
TENSORS, NORM = 20, 256
Messages = list[tuple[Key, Payload, float]]


def vector(entries: int) -> Layout:
    """All entries as one tensor."""
    return Layout((("w", torch.Size([entries])),))


def model(entries: int) -> Layout:
    """The same in weights of equal size, and a norm behind each."""
    weight, norm = torch.Size([1, entries // TENSORS]), torch.Size([NORM])
    return Layout(tuple((f"{n:02}.{name}", s) for n in range(TENSORS) for name, s in (("a", weight), ("b", norm))))


def messages(codec: Codec, layout: Layout, device: str) -> Messages:
    """What ten clients send."""
    made = []
    for client, weight in enumerate(WEIGHTS):
        at = fold(key(1), "client", client)
        change = (uniform(fold(at, "change"), layout.size, device=device) - 0.5) * 0.01
        made.append((at, codec.encode(change, layout, at), weight))
    return made


def folded(codec: Codec, acc: Tensor, layout: Layout, sent: Messages) -> Tensor:
    for at, payload, weight in sent:
        codec.fold(acc, payload, layout, at, weight)
    return acc


def plain(codec: MaskedNoise, acc: Tensor, sent: Messages) -> Tensor:
    """The same in plain tensor operations, whole vectors at a time."""
    for at, payload, weight in sent:
        noise = (2 * uniform(fold(at, "noise"), acc.numel(), device=acc.device) - 1) * codec.alpha
        acc += weight * torch.where(unbits(payload["mask"], acc.numel()), noise, -noise if codec.signed else 0.0)
    return acc


def on_cpu(codec: MaskedNoise, entries: int, repeats: int = 15) -> None:
    torch.set_num_threads(1)
    kinds: dict[str, tuple[Codec, Layout]] = {
        "alone": (codec, vector(entries)),
        "a model's": (OnWeights(codec), model(entries)),
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
    print(f"{codec}: draw {min(draw):.1f} ms at best")
    for name, took in times.items():
        ratios = sorted(f / d for f, d in zip(took, draw, strict=True))
        told = f"ratio {statistics.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  fold {name}: {min(took):.1f} ms at best; {told}")


def on_gpu(codec: MaskedNoise, entries: int) -> None:
    print(codec)
    layout = vector(entries)
    fused, lifted = on_gpu_folds(codec, layout), on_gpu_folds(OnWeights(codec), model(entries))
    acc, sent = torch.zeros(entries, device="cuda"), messages(codec, layout, "cuda")
    plainly = milliseconds(lambda: plain(codec, acc, sent), "cuda")
    print(f"  {CLIENTS} folds alone {fused:.3f} ms, a model's {lifted:.3f} ms, plainly {plainly:.3f} ms")


def on_gpu_folds(codec: Codec, layout: Layout) -> float:
    """Milliseconds for all messages, once their sum is known to be the CPU's."""
    sent = messages(codec, layout, "cuda")
    here = [(at, {name: array.cpu() for name, array in payload.items()}, weight) for at, payload, weight in sent]
    acc = torch.zeros(layout.size, device="cuda")
    found, wanted = folded(codec, acc, layout, sent).cpu(), folded(codec, torch.zeros(layout.size), layout, here)
    if not torch.equal(found, wanted):
        raise SystemExit(f"{codec}: {int((found != wanted).sum()):,} sums differ from the CPU's")
    return milliseconds(lambda: folded(codec, acc, layout, sent), "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of folding masked noise.")
    parser.add_argument("--millions", type=float, default=11)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    entries = int(given.millions * 1e6) // TENSORS * TENSORS
    for signed in (False, True):
        (on_gpu if given.device == "cuda" else on_cpu)(MaskedNoise(signed=signed), entries)


if __name__ == "__main__":
    main()
