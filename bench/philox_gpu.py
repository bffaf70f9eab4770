"""Check that random words on a GPU equal those on the CPU, and time 10 million of them.

PYTHONPATH=src python3 bench/philox_gpu.py
"""

from functools import partial

import torch
from stopwatch import milliseconds
from torch import Tensor

from gossamer.core.random import Key, Keys, draw_bits, fold, fold_each, key, tensor, uniform, words, words_by_tensor_ops

SIZES = (0, 1, 5, 1_024, 1_000_003)
STARTS = (0, 1, 2, 3, 7, 2**31 - 1, 2**40 + 3, 2**63 + 1, 2**64 - 1_000_003)
KEYS = (key(1), fold(key(2), "noise", 3), Key(0, 0), Key(1, 1), Key(2**63, 2**64 - 1))
MILLIONS = 10
ROWS = 1_000


def check(name: str, found: Tensor, wanted: Tensor) -> None:
    if not torch.equal(found.cpu(), wanted):
        raise SystemExit(f"{name}: {int((found.cpu() != wanted).sum())} of {wanted.numel()} differ")


def check_bits() -> int:
    checked = 0
    for k in KEYS:
        for n in SIZES:
            for start in STARTS:
                case = f"{k} n={n} start={start}"
                wanted = words(k, n, start=start)
                check(f"words {case}", words(k, n, start=start, device="cuda"), wanted)
                check(f"tensor ops {case}", words_by_tensor_ops(k, n, start=start, device="cuda"), wanted)
                for dtype in (torch.float32, torch.float64):
                    noise = uniform(k, n, dtype=dtype, start=start, device="cuda")
                    check(f"uniform {dtype} {case}", noise, uniform(k, n, dtype=dtype, start=start))
                checked += 1
    return checked


def check_rows() -> int:
    """All rows of a group at once, against the CPU and one by one."""
    keys, checked = Keys(KEYS), 0
    steps = torch.tensor([0, 1, 2**31, 2**33 + 5, 2**62])
    for n in SIZES:
        for start in STARTS:
            found = words(keys, n, start=start, device="cuda")
            check(f"rows n={n} start={start}", found, words(keys, n, start=start))
            checked += 1
        for layer in (0, 3):
            wanted = draw_bits(tensor(keys), steps, n, layer, 1)
            check(f"draws n={n}", draw_bits(tensor(keys, "cuda"), steps.cuda(), n, layer, 1), wanted)
            stacked = torch.vmap(lambda k, at, n=n, layer=layer: draw_bits(k, at, n, layer, 1))
            check(f"stacked draws n={n}", stacked(tensor(keys, "cuda"), steps.cuda()), wanted)
            checked += 1
    return checked


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"bits agree in {check_bits()} cases, and those of rows in {check_rows()}")
    k, n = key(1), MILLIONS * 1_000_000
    print(f"median ms for {MILLIONS} million words")
    print(f"  words, cuda         {milliseconds(lambda: words(k, n, device='cuda'), 'cuda'):9.3f}")
    floats = milliseconds(lambda: uniform(k, 2 * n, device="cuda"), "cuda")
    print(f"  uniform, cuda       {floats:9.3f}   (2 float32 per word)")
    print(f"  tensor ops, cuda    {milliseconds(lambda: words_by_tensor_ops(k, n, device='cuda'), 'cuda'):9.3f}")
    print(f"  numpy, cpu          {milliseconds(lambda: words(k, n), 'cpu', 5):9.3f}")
    keys, each = fold_each(k, "client", range(ROWS)), 650
    print(f"median ms for {each} float32 of each of {ROWS:,} keys")
    for device in ("cuda", "cpu"):
        one_by_one = partial(_each, keys, each, device)
        print(f"  all at once, {device:6} {milliseconds(partial(uniform, keys, each, device=device), device):9.3f}")
        print(f"  one by one, {device:6}  {milliseconds(one_by_one, device, 3):9.3f}")


def _each(keys: Keys, n: int, device: str) -> list[Tensor]:
    return [uniform(one, n, device=device) for one in keys]


if __name__ == "__main__":
    main()
