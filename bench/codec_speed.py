"""Measure the time of every codec to encode and decode a long vector, and its payload.

    python bench/codec_speed.py [--device cpu|cuda] [--size 11000000] [--repeats 10] [--only Drive eden:4]

The table has median milliseconds (by CUDA events on a GPU), bytes of the payload, and bits per entry. A codec that
wraps another one wraps ``Dense``. All other fields have their defaults, unless ``--only`` names a spec.
"""

import argparse
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from stopwatch import milliseconds

from gossamer.core.codec import Coding
from gossamer.core.random import fold, key, uniform
from gossamer.core.specs import parse
from gossamer.core.types import Layout
from gossamer.parts import codecs
from gossamer.parts.codecs import CODECS, Codec, Dense

KEY = key(1)


def found(only: list[str] | None) -> Iterator[Codec]:
    """Yield one instance of each codec that Gossamer exports, or those of some names and specs."""
    for name in only or dir(codecs):
        if name.partition(":")[0] in CODECS:
            yield parse(name, CODECS, "codec")
            continue
        kind: Any = getattr(codecs, name)
        if isinstance(kind, type) and issubclass(kind, Codec) and not inspect.isabstract(kind):
            yield made(kind)


def made(kind: Any) -> Codec:
    try:
        codec: Codec = kind()
    except TypeError:
        codec = kind(Dense())
    return codec


def row(codec: Codec, x: torch.Tensor, device: str, repeats: int) -> str:
    ctx = Coding(Layout((("x", x.shape),)), KEY)
    payload, _ = codec.encode_with(x, codec.init(ctx.layout), ctx)
    encode = milliseconds(lambda: codec.encode_with(x, codec.init(ctx.layout), ctx), device, repeats)
    decode = milliseconds(lambda: codec.decode(payload, ctx), device, repeats)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
    return f"{encode:10.3f} {decode:10.3f} {nbytes:12,} {8 * nbytes / len(x):8.4f}  {codec!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time and the payload of every codec.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", type=int, default=11_000_000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="names or specs of codecs, such as eden:4")
    given = parser.parse_args()
    machine = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {machine}, {given.size:,} float32 entries")
    print(f"{'encode ms':>10} {'decode ms':>10} {'bytes':>12} {'bits':>8}  codec")
    x = uniform(fold(KEY, "x"), given.size, device=given.device) - 0.5
    for codec in found(given.only):
        print(row(codec, x, given.device, given.repeats), flush=True)


if __name__ == "__main__":
    main()
