"""Check that random words on a GPU equal those on the CPU, and time 10 million of them.

PYTHONPATH=src python3 bench/philox_gpu.py
"""

import torch
from stopwatch import milliseconds
from torch import Tensor

from gossamer.core.random import Key, fold, key, uniform, words, words_by_tensor_ops

SIZES = (0, 1, 5, 1_024, 1_000_003)
STARTS = (0, 1, 2, 3, 7, 2**31 - 1, 2**40 + 3, 2**63 + 1, 2**64 - 1_000_003)
KEYS = (key(1), fold(key(2), "noise", 3), Key(0, 0), Key(1, 1), Key(2**63, 2**64 - 1))
MILLIONS = 10


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


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"bits agree in {check_bits()} cases")
    k, n = key(1), MILLIONS * 1_000_000
    print(f"median ms for {MILLIONS} million words")
    print(f"  words, cuda         {milliseconds(lambda: words(k, n, device='cuda'), 'cuda'):9.3f}")
    floats = milliseconds(lambda: uniform(k, 2 * n, device="cuda"), "cuda")
    print(f"  uniform, cuda       {floats:9.3f}   (2 float32 per word)")
    print(f"  tensor ops, cuda    {milliseconds(lambda: words_by_tensor_ops(k, n, device='cuda'), 'cuda'):9.3f}")
    print(f"  numpy, cpu          {milliseconds(lambda: words(k, n), 'cpu', 5):9.3f}")


if __name__ == "__main__":
    main()
