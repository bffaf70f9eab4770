"""Run a reproduction by name: ``python -m reproduce NAME ...``; without a name, list all of them."""

import importlib
import sys
from collections.abc import Sequence

STUDIES = {
    "fedmrn": ("reproduce.fedmrn.__main__", "FedMRN: masks over random noise, one bit per parameter"),
    "fedspa": ("reproduce.fedspa.__main__", "FedSpa: personalized sparse models"),
    "perm": ("reproduce.perm.__main__", "PERM: personalized mixtures of client losses"),
    "submodel": ("reproduce.submodel.__main__", "sub-model training: random, rolling and static channels"),
    "submodel-theory": ("reproduce.submodel.theory", "sub-model training on a convex problem, next to its theorems"),
    "submodel-stability": ("reproduce.submodel.stability", "the stability of sub-model training, next to its theorems"),
    "wireless": ("reproduce.wireless.__main__", "training over radio links that lose messages"),
    "wireless-bound": ("reproduce.wireless.bound", "the convergence bound over lossy links, next to measured runs"),
    "wireless-convex": ("reproduce.wireless.convex", "one-bit sensing and retention on a convex problem"),
    "sensing-quality": ("reproduce.wireless.sensing_quality", "decoders of one-bit measurements"),
    "classics": ("reproduce.baselines.classics", "eight methods on Fashion-MNIST, two labels per client"),
    "codecs": ("reproduce.baselines.codecs", "all compression methods on three tasks: accuracy, bits and times"),
    "precision": ("reproduce.baselines.precision", "FedAvg trained in float32, tf32 and bf16: accuracy and times"),
    "attacks": ("reproduce.baselines.attacks", "hostile clients against servers and one-bit codecs, on Fashion-MNIST"),
    "schedules": ("reproduce.baselines.schedules", "schedules in virtual time: hours and joules to 85 % accuracy"),
    "privacy": (
        "reproduce.privacy.__main__",
        "accuracy by epsilon, and with secure sums: dense, signs, masks",
    ),
    "finetune": ("reproduce.finetune.__main__", "fine-tuning of a language model: adapters, seeds, bytes and memory"),
    "fashion": ("reproduce.baselines.fashion", "FedAvg on Fashion-MNIST"),
    "two-populations": ("reproduce.baselines.two_populations", "PERM's synthetic data with three baselines"),
}
"""Name on the command line: its module, and what it reproduces."""


def listing() -> str:
    """Return one line per study."""
    width = max(map(len, STUDIES))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in STUDIES.items()]
    return "\n".join(["usage: python -m reproduce STUDY [options]", "", "studies:", *lines])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study that the first argument names, with the other arguments."""
    name, *options = (sys.argv[1:] if argv is None else argv) or [""]
    if name in ("", "-h", "--help"):
        print(listing())
    elif name in STUDIES:
        importlib.import_module(STUDIES[name][0]).main(options)
    else:
        raise SystemExit(f"unknown study {name!r}\n\n{listing()}")


if __name__ == "__main__":
    main()
