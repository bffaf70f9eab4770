"""The cases: every method, and every part of the library with its main settings, by family.

A case is named ``FAMILY/NAME``. Most run over a lossy channel, so that clients keep what was lost; five clients with
unequal numbers of samples, four of them per round. What is drawn from the operating system cannot be recorded: such
cases have ``messages=False``, and the values of their models alone are compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gossamer import (
    DPSGD,
    KLMS,
    QSGD,
    SGD,
    Adam,
    AdaptiveClip,
    Average,
    Bernoulli,
    Bucketing,
    BySize,
    CenteredClipping,
    Clip,
    Cosine,
    Deadline,
    Delta,
    Dense,
    Device,
    DiscreteGaussian,
    Ditto,
    Drive,
    Eden,
    Exchange,
    Exponential,
    FedAsync,
    FedBuff,
    Feedback,
    FixedPoint,
    Fleet,
    FleetLinks,
    Full,
    GeometricMedian,
    GradientProbe,
    GradientSimilarity,
    Hiso,
    Int4,
    Int8,
    Krum,
    KSeed,
    LargestWeights,
    LocalGaussian,
    LoRA,
    Lossy,
    MagnitudePruned,
    MajorityAverage,
    MaskAverage,
    MaskedNoise,
    Mean,
    Median,
    Method,
    ModelRotation,
    MultiKrum,
    NoisySign,
    OneBit,
    OnWeights,
    Perfect,
    PerFedAvg,
    PersonalMask,
    PFedMe,
    Poisson,
    PoissonBinomial,
    PowerOfChoice,
    PrivateMean,
    Progressive,
    Pruned,
    PrunedAverage,
    PrunedChannels,
    PruningSGD,
    QuicFL,
    Retain,
    Robust,
    RoundRobin,
    SampledMask,
    ScaledZerothOrder,
    SecAgg,
    Seeds,
    SeedSums,
    SendSums,
    Skellam,
    SnapshotSGD,
    Sparse,
    SparseSGD,
    Steps,
    StochasticSign,
    Subsample,
    SumThenDecode,
    Supermask,
    Synchronous,
    Ternary,
    ThresholdSGD,
    TopK,
    TreeMean,
    TrimmedMean,
    Uniform,
    WarmUp,
    WidthSlice,
    Windows,
    Wireless,
    ZerothOrder,
    methods,
    private,
    secured,
)
from gossamer.methods import EF21, METHODS, Clusters, MeanOfEstimates, ServerOptimizer, compose
from gossamer.parts.codecs import CommonMaskedNoise, DenseMaskedNoise
from gossamer.parts.servers import AdapterMean, Stacking
from gossamer.parts.views import RankSlice
from replay.tasks import task

LOSSY = Lossy(0.25)


@dataclass(frozen=True)
class Case:
    """A run.

    Args:
        method: makes the method
        net: the network of the task
        split: the partition of the samples
        clients: the number of clients
        channel: the channel
        options: other options of the run
        messages: whether the bytes of messages are the same in every run
    """

    method: Callable[[], Method]
    net: str = "batch"
    split: str = "dirichlet:1"
    clients: int = 5
    channel: Any = LOSSY
    options: Mapping[str, Any] = field(default_factory=dict)
    messages: bool = True


Family = dict[str, Case]

SHORT: dict[str, Any] = {"lr": 0.1, "epochs": 1, "batch": 5}
"""One epoch: one to five steps, the last one with a short batch for most clients."""
STEPS: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch": 5}
SMALL: dict[str, Any] = {"lr": 0.01, "steps": 2, "batch": 5}
ADAPTED: dict[str, Any] = {**SHORT, "lr": 0.5}
NOISE: dict[str, Any] = {"noise": "uniform"}
HALF: dict[str, Any] = {"capacities": (1.0, 0.5)}
SENSED: dict[str, Any] = {"lr": 0.5, "weights": "samples", "measurements": 0.5}
MIXED: dict[str, Any] = {**SHORT, "warmup": 1, "bound": 0.5, "global_lr": 0.1}
PRUNING: dict[str, Any] = {**SHORT, "epochs": 2, "share": 0.3, "distance": 0.0, "accuracy": 0.0}
PROBED: dict[str, Any] = {"lr": 0.01, "steps": 2, "mu": 0.001, "batch": 5}
SCALARS: dict[str, Any] = {**PROBED, "perturbations": 2}


def method(name: str, net: str = "batch", /, split: str = "dirichlet:1", **fields: Any) -> Case:
    """Return a case of a method by its name; without fields of its own, it trains for one epoch."""
    return Case(lambda: METHODS[name](**fields or SHORT), net, split)


def averaging(net: str = "batch", /, **parts: Any) -> Case:
    """Return a case of FedAvg with other parts; options of ``Case`` are given by their names."""
    case = {name: parts.pop(name) for name in ("channel", "options", "clients", "split", "messages") if name in parts}
    return Case(lambda: methods.fedavg(**SHORT).with_parts(**parts), net, **case)


METHOD_CASES: Family = {
    "fedavg": method("fedavg", **SHORT, weights="samples"),
    "fedsgd": method("fedsgd", lr=0.5),
    "fedprox": method("fedprox", **SHORT, mu=0.5),
    "fedavgm": method("fedavgm", **SHORT, beta1=0.7),
    "fedadagrad": method("fedadagrad", "group", **SHORT, beta1=0.3),
    "fedadam": method("fedadam", **SHORT),
    "fedyogi": method("fedyogi", "group", **SHORT),
    "scaffold": method("scaffold", **SHORT),
    "feddyn": method("feddyn", "group", **SHORT, alpha=0.2),
    "fednova": method("fednova", **SHORT, momentum=0.5),
    "dp-fedavg": method("dp-fedavg", "group", **SHORT, adaptive=True),
    "dp-ftrl": method("dp-ftrl", "group", **SHORT, momentum=0.5, restart_every=2),
    "local": method("local"),
    "centralised": method("centralised"),
    "fedavg-tuned": method("fedavg-tuned", **SHORT, tune_epochs=1),
    "ditto": method("ditto", **SHORT, personal_epochs=1),
    "per-fedavg": method("per-fedavg", **SHORT),
    "pfedme": method("pfedme", "group", lr=0.05, personal_lr=0.05, steps=2, inner_steps=2, batch=5, beta=0.7),
    "ifca": method("ifca", **SHORT),
    "perm": method("perm", **MIXED),
    "perm-two-stage": method("perm-two-stage", "group", **MIXED),
    "fedspa": method("fedspa", **SHORT),
    "sub-fedavg": method("sub-fedavg", **PRUNING),
    "submodel-random": method("submodel-random", **SHORT, **HALF),
    "submodel-rolling": method("submodel-rolling", **SHORT, **HALF, offsets=4),
    "heterofl": method("heterofl", split="labels:2", **SHORT, **HALF),
    "fedrolex": method("fedrolex", split="labels:2", **SHORT, capacities=(0.5, 1.0)),
    "fiarse": method("fiarse", **SHORT, **HALF, momentum=0.5),
    "lora": method("lora", "dense", **SHORT, rank=2),
    "ffa-lora": method("ffa-lora", "dense", **SHORT, rank=2),
    "lora-truncated": method("lora-truncated", "dense", **SHORT, rank=2, **HALF),
    "flora": method("flora", "dense", **SHORT, rank=2, **HALF),
    "fedmrn": method("fedmrn", **SHORT),
    "fedmrns": method("fedmrns", **SHORT),
    "fedpm": method("fedpm"),
    "klms": method("klms"),
    "fedsparsify": method("fedsparsify", **SHORT, sparsity=0.8),
    "fedavg-pruned": method("fedavg-pruned"),
    "signsgd": method("signsgd", "group"),
    "z-signfedavg": method("z-signfedavg"),
    "topk": method("topk", **SHORT, share=0.1),
    "ef21": method("ef21", lr=0.3, share=0.1),
    "subsample": method("subsample", **SHORT, share=0.25),
    "terngrad": method("terngrad"),
    "qsgd": method("qsgd", **SHORT, bucket=16),
    "int8": method("int8", **SHORT, block=16),
    "drive": method("drive", "group"),
    "eden": method("eden", **SHORT, bits=2),
    "quic-fl": method("quic-fl", "group"),
    "decomfl": method("decomfl", "group", **SCALARS),
    "hiso": method("hiso", "group", **SCALARS),
    "fedkseed": method("fedkseed", "group", **PROBED, candidates=16),
    "onebit-cs": method("onebit-cs", **SENSED),
    "onebit-cs-paper": method("onebit-cs-paper", "group", **SENSED),
}

VARIANTS: Family = {
    "fedavg, steps": method("fedavg", "group", **STEPS, weights="uniform", server_lr=0.5),
    "fedavg, batches": method("fedavg", **SHORT, weights="batches"),
    "scaffold, option 1": method("scaffold", "group", **SHORT, option=1),
    "fedadam, moments": method("fedadam", **STEPS, server_lr=0.1, beta1=0.5, beta2=0.9, tau=0.01),
    "dp-fedavg, fixed clip": method("dp-fedavg", "group", **SHORT, clip=0.1, server_lr=0.5),
    "dp-ftrl, plain": method("dp-ftrl", "group", **SHORT, honaker=False),
    "local, group": method("local", "group", **STEPS),
    "ditto, group": method("ditto", "group", **SHORT, personal_epochs=2, lam=2.0),
    "per-fedavg, no inner step": method("per-fedavg", "group", **SHORT, inner=0.0),
    "pfedme, batch": method("pfedme", lr=0.05, personal_lr=0.05, steps=2, inner_steps=1, batch=5, weight_decay=0.01),
    "ifca, three": method("ifca", "group", **STEPS, clusters=3),
    "perm, unequal widths": method("perm", **{**MIXED, "warmup": 0}, **HALF, complexity=1.0),
    "perm, few weights": method("perm", "group", **{**MIXED, "warmup": 0}, keep=2, sketch=32, every="epoch"),
    "perm, small probe": method("perm", "group", **{**MIXED, "warmup": 0}, probe=4, lambda_=0.1, solve=3, radius=2.0),
    "perm-two-stage, unequal widths": method("perm-two-stage", **MIXED, **HALF, complexity=1.0),
    "fedspa, own masks": method(
        "fedspa", **SHORT, density=0.3, own_init=True, regrow="random", distribution="uniform-weights"
    ),
    "fedspa, fixed masks": method("fedspa", "group", **SHORT, mask="rsm", distribution="uniform"),
    "sub-fedavg, hybrid": method("sub-fedavg", **PRUNING, prune="hybrid", channel_share=0.3, channel_distance=0.0),
    "submodel-random, coordinates": method("submodel-random", **SHORT, by="coordinate", capacities=(1.0, 0.3)),
    "submodel-random, drawn": method("submodel-random", **SHORT, **HALF, drawn=True, over="holders", momentum=0.9),
    "submodel-random, own labels": method("submodel-random", split="labels:2", **SHORT, **HALF, labels="own"),
    "submodel-rolling, coordinates": method("submodel-rolling", "group", **SHORT, **HALF, by="coordinate", offsets=4),
    "heterofl, coordinates": method("heterofl", "group", "labels:2", **SHORT, **HALF, by="coordinate"),
    "fedrolex, coordinates": method("fedrolex", split="labels:2", **SHORT, **HALF, by="coordinate", offsets=4),
    "fiarse, by tensor": method("fiarse", split="labels:2", **SHORT, **HALF, by="tensor", labels="own"),
    "lora-truncated, cohort": method("lora-truncated", "dense", **SHORT, rank=2, **HALF, over="cohort", drawn=True),
    "fedmrn, learned": method("fedmrn", **SHORT, **NOISE, weights="samples", spread=3.0, learn_masks=True),
    "fedmrn, fixed": method("fedmrn", "group", **SHORT, **NOISE, alpha=0.01, coded=False),
    "fedmrn, common noise": method("fedmrn", **SHORT, alpha=0.05, common_noise=True),
    "fedmrn, small blocks": method("fedmrn", **SHORT, block=8, spread=2.0),
    "fedmrns, small blocks": method("fedmrns", "group", **SHORT, block=4, coded=False),
    "fedmrn, base": method("fedmrn", "group", **SHORT, train_base=True),
    "fedmrns, learned": method("fedmrns", "group", **SHORT, **NOISE, spread=3.0, learn_masks=True),
    "fedmrns, gauss": method("fedmrns", **SHORT, noise="gauss", alpha=0.02),
    "fedpm, coded": method("fedpm", "group", **SHORT, coded=True),
    "fedpm, around start": method("fedpm", **SHORT, scale=0.5, around="start"),
    "klms, few bits": method("klms", "group", **SHORT, bits=3, rate=1.0),
    "fedsparsify, global": method("fedsparsify", "group", **SHORT, sparsity=0.8, where="global", every=2),
    "signsgd, feedback": method("signsgd", **SHORT, feedback=True, scale="norm"),
    "z-signfedavg, uniform": method("z-signfedavg", "group", **SHORT, noise="uniform", sigma=0.5),
    "topk, feedback": method("topk", **SHORT, share=0.1, feedback=True),
    "ef21, steps": method("ef21", "group", lr=0.1, steps=2, batch=5, share=0.2),
    "subsample, plain": method("subsample", "group", **SHORT, share=0.5, rescale=False),
    "terngrad, feedback": method("terngrad", **SHORT, feedback=True, coded=False),
    "qsgd, feedback": method("qsgd", "group", **SHORT, levels=3, norm="max", feedback=True),
    "int8, nearest": method("int8", **SHORT, rounding="nearest", feedback=True),
    "drive, feedback": method("drive", **SHORT, scale="least-squares", feedback=True),
    "eden, coded": method("eden", **SHORT, bits=3, coded=True, feedback=True),
    "quic-fl, feedback": method("quic-fl", **SHORT, bits=3, feedback=True),
    "decomfl, gauss": method("decomfl", "group", **PROBED, directions="gauss", difference="forward", clip=1.0),
    "hiso, float16": method("hiso", "group", **PROBED, smoothing=0.5, dtype="float16"),
    "fedkseed, gauss": method("fedkseed", "group", **PROBED, candidates=8, directions="gauss", weights="uniform"),
    "onebit-cs, amp": method("onebit-cs", "group", **SENSED, decoder="amp", matrix="gaussian", retain="nothing"),
    "onebit-cs, biht": method("onebit-cs", **SENSED, decoder="biht", retain="signs", fresh=False, length=1.0),
    "onebit-cs, niht": method("onebit-cs", **SENSED, decoder="niht", accumulate=True, scaling="norms"),
    "onebit-cs, back-projection": method("onebit-cs", **SENSED, decoder="back-projection", ratio=(0.3, 0.6), rise=2),
    "onebit-cs, fixed matrix": method("onebit-cs", **SENSED, fresh=False, by="tensor"),
}


def codec(part: Any, net: str = "batch") -> Case:
    """Return a case of a codec for the weights."""
    return averaging(net, codec=OnWeights(part))


def whole(part: Any, net: str = "group") -> Case:
    """Return a case of a codec for all tensors."""
    return averaging(net, codec=part)


def noisy(part: Any) -> Case:
    """Return a case of a codec with noise, which needs equal weights."""
    return averaging("group", codec=part, server=Mean("uniform"))


CODEC_CASES: Family = {
    "dense": whole(Dense(), "batch"),
    "dense, float16": whole(Dense("float16"), "batch"),
    "dense, bfloat16": whole(Dense("bfloat16")),
    "sparse": Case(
        lambda: compose(Full(), PruningSGD(**SHORT, sparsity=0.5), OnWeights(Sparse()), Average(), send="model")
    ),
    "topk": whole(TopK(0.2)),
    "subsample": whole(Subsample(0.3)),
    "sign": whole(StochasticSign()),
    "sign, fixed": codec(StochasticSign(0.01)),
    "noisy-sign": whole(NoisySign(0.3, "uniform")),
    "ternary": whole(Ternary()),
    "ternary, fixed": codec(Ternary(scale=0.5)),
    "qsgd": whole(QSGD(levels=3, bucket=32)),
    "int8": whole(Int8(block=32)),
    "int4": codec(Int4(block=16)),
    "fixed-point": whole(FixedPoint(5), "batch"),
    "fixed-point, fine": codec(FixedPoint(13, 2.0)),
    "drive": whole(Drive()),
    "eden": whole(Eden(2, coded=True)),
    "quic-fl": whole(QuicFL(2)),
    "masked-noise": codec(MaskedNoise()),
    "masked-noise, signed": whole(MaskedNoise(signed=True, noise="bernoulli", coded=True)),
    "masked-noise, alpha": codec(MaskedNoise(alpha=0.01, **NOISE), "group"),
    "masked-noise, not progressive": codec(MaskedNoise(alpha=0.05, progressive=False, stochastic=False)),
    "masked-noise, dense": codec(DenseMaskedNoise(MaskedNoise(alpha=0.01))),
    "masked-noise, common": Case(
        lambda: methods.fedavg(**SHORT).with_parts(
            codec=OnWeights(CommonMaskedNoise(True, "uniform", 0.5)), server=SumThenDecode("uniform")
        )
    ),
    "one-bit": codec(OneBit(0.5)),
    "one-bit, gaussian": codec(OneBit(0.5, matrix="gaussian", decoder="amp", retain="change"), "group"),
    "sampled-mask": Case(
        lambda: compose(
            Full(), SGD(**SHORT), SampledMask(coded=True), MaskAverage(), parametrization=Supermask(), send="model"
        ),
        "dense",
    ),
    "klms": Case(
        lambda: compose(
            Full(), SGD(**SHORT), OnWeights(KLMS(bits=4)), MaskAverage(), parametrization=Supermask(), send="model"
        ),
        "dense",
    ),
    "feedback": whole(Feedback(TopK(0.1)), "batch"),
    "feedback, per tensor": averaging(codec=OnWeights(Feedback(TopK(0.1)), per_tensor=True, min_dim=0)),
    "feedback, dense": whole(Feedback(Dense()), "batch"),
    "on weights, excluded": averaging(codec=OnWeights(Drive(), exclude=("0.*",), other=Dense("float16"))),
    "on weights, per tensor": averaging("group", codec=OnWeights(Int8(), per_tensor=True, min_dim=1)),
    "ef21": Case(lambda: methods.fedavg(**SHORT).with_parts(codec=EF21(TopK(0.2)), server=MeanOfEstimates()), "group"),
    "ef21, on weights": Case(
        lambda: methods.fedavg(**SHORT).with_parts(
            codec=OnWeights(EF21(TopK(0.1)), min_dim=0), server=MeanOfEstimates()
        )
    ),
    "retain": whole(Retain(Dense())),
    "retain, accumulated": whole(Retain(Dense(), coefficient=0.5, accumulate=True), "batch"),
    "retain, compressed": codec(Retain(Eden(2))),
    "poisson-binomial": noisy(PoissonBinomial(theta=0.4, trials=5)),
    "local-gaussian": noisy(LocalGaussian(clip=1.0, noise_multiplier=0.01)),
    "local-gaussian, eden": noisy(LocalGaussian(clip=1.0, noise_multiplier=0.01, codec=Eden(2))),
    "seeds, projected": whole(Seeds(8)),
    "seeds, gauss": whole(Seeds(6, "gauss", "bfloat16")),
    "seeds": Case(lambda: compose(Full(), ZerothOrder(**SCALARS), Seeds(4), SumThenDecode()), "group"),
}


def view(part: Any, net: str = "batch", **fields: Any) -> Case:
    """Return a case of a view; the mean is over the holders of an entry."""
    return Case(lambda: compose(part, SGD(**SHORT, momentum=0.5), Dense(), Mean(over="holders")), net, **fields)


def masked(part: Any, codec: Any = None, net: str = "batch") -> Case:
    """Return a case of a view of personal masks, with the server of its method."""
    return Case(
        lambda: methods.fedspa(**SHORT).with_parts(view=part, codec=codec or Dense()),
        net,
    )


def pruned(part: Any, net: str = "batch") -> Case:
    """Return a case of a view that prunes."""
    return Case(lambda: methods.sub_fedavg(**PRUNING).with_parts(view=part), net)


VIEW_CASES: Family = {
    "full": view(Full()),
    "bernoulli": view(Bernoulli((1.0, 0.3))),
    "bernoulli, drawn": view(Bernoulli((1.0, 0.2), drawn=True, min_dim=1), "group"),
    "windows": view(Windows((1.0, 0.5), offsets=4)),
    "windows, in sequence": view(Windows((0.5,), offsets=3, shuffled=False, min_dim=1, seed=2), "group"),
    "width, static": view(WidthSlice((1.0, 0.5), order="static")),
    "width, rolling": view(WidthSlice((0.5, 1.0), order="rolling")),
    "width, random": view(WidthSlice((1.0, 0.5), drawn=True, order="random", streams=False)),
    "width, shuffled": view(WidthSlice((0.5, 0.75), order="shuffled", offsets=4, seed=3), "dense"),
    "width, static, dense": view(WidthSlice((0.4, 0.8, 1.0), order="static"), "dense", split="labels:2"),
    "largest": view(LargestWeights((1.0, 0.3))),
    "largest, by tensor": view(LargestWeights((0.2, 1.0), drawn=True, by="tensor"), "group"),
    "magnitude pruned": view(MagnitudePruned((0.5,))),
    "magnitude pruned, rising": view(MagnitudePruned((0.2, 0.8), by="tensor", rise=3), "group"),
    "personal mask": masked(PersonalMask()),
    "personal mask, own": masked(PersonalMask(0.3, own_init=True, regrow="random", init="uniform"), None, "group"),
    "personal mask, fixed": masked(PersonalMask(0.4, moving=False, seed=5)),
    "personal mask, feedback": masked(PersonalMask(0.3, last=True), OnWeights(Feedback(TopK(0.2)))),
    "pruned": pruned(Pruned(share=0.3, distance=0.0, accuracy=0.0)),
    "pruned, group": pruned(Pruned(target=0.3, share=0.5, distance=0.0, accuracy=0.3), "group"),
    "pruned channels": pruned(
        PrunedChannels(share=0.3, distance=0.0, accuracy=0.0, channel_share=0.3, channel_distance=0.0)
    ),
    "rank": Case(
        lambda: compose(RankSlice((1.0, 0.5)), SGD(**ADAPTED), server=AdapterMean(over="holders"), adapter=LoRA(2)),
        "dense",
    ),
    "rank, whole down": Case(
        lambda: compose(RankSlice((0.5, 1.0), drawn=True, down="whole"), Adam(**SHORT), adapter=LoRA(2)), "dense"
    ),
    "width, down compressed": Case(
        lambda: methods.submodel_random(**SHORT, capacities=(0.5, 1.0)).with_parts(down=Dense("float16"))
    ),
    "width, eden": Case(lambda: methods.heterofl(**SHORT, **HALF).with_parts(codec=OnWeights(Eden(2)))),
    "width, feedback": Case(
        lambda: methods.heterofl(**SHORT, **HALF, labels="all").with_parts(codec=OnWeights(Retain(Dense())))
    ),
    "largest, top-k": Case(lambda: methods.fiarse(**SHORT, **HALF).with_parts(codec=OnWeights(TopK(0.2)))),
}


def server(part: Any, net: str = "batch", **more: Any) -> Case:
    """Return a case of FedAvg with a server."""
    return averaging(net, server=part, **more)


def robust(rule: Any, net: str = "batch", mean: Any = None) -> Case:
    """Return a case of a robust rule, with six clients of which each takes part."""
    made = Robust(rule) if mean is None else Robust(rule, mean)
    return averaging(net, server=made, clients=6, options={"per_round": 6}, channel=Lossy(0.1))


def rotating(server: Any, probe: Any) -> Case:
    """Return a case that compares clients, and then rotates their models."""
    before = Exchange(Full(), probe, Dense(), server, Dense())
    return Case(lambda: compose(Full(), SGD(**SHORT), server=ModelRotation(), before=(before,)), "group")


SERVER_CASES: Family = {
    "mean, batches": server(Mean("batches", radius=1.0), "group"),
    "mean, holders": server(Mean("uniform", over="holders", server_lr=0.5)),
    "sum, then decode": server(SumThenDecode()),
    "sum, then decode, eden": Case(
        lambda: methods.fedavg(**SHORT).with_parts(codec=OnWeights(Eden(2)), server=SumThenDecode("uniform"))
    ),
    "average": Case(lambda: compose(Full(), SGD(**SHORT), Dense(), Average(), send="model")),
    "majority": Case(
        lambda: compose(
            Full(),
            SparseSGD(**SHORT, pruning=Progressive(0.6)),
            OnWeights(Sparse()),
            MajorityAverage(),
            send="model",
        )
    ),
    "pruned": Case(
        lambda: compose(
            Full(),
            SparseSGD(**SHORT, pruning=Progressive(0.6), local=False),
            OnWeights(Sparse()),
            PrunedAverage(pruning=Progressive(0.6)),
            send="model",
        ),
        "group",
    ),
    "clusters": server(Clusters(clusters=2)),
    **{
        f"optimizer, {rule}": server(ServerOptimizer("uniform", rule=rule), "group")
        for rule in ("momentum", "adagrad", "adam", "yogi")
    },
    "adapter mean": Case(
        lambda: compose(Full(), SGD(**ADAPTED), server=AdapterMean("uniform"), adapter=LoRA(2)), "dense"
    ),
    "stacking": Case(
        lambda: compose(Full(), SGD(**ADAPTED), server=Stacking("uniform"), adapter=LoRA(2, merges=True)), "dense"
    ),
    "rotation": Case(lambda: compose(Full(), SGD(**SHORT), server=ModelRotation())),
    "warm-up": server(WarmUp(rounds=3)),
    "similarity": rotating(GradientSimilarity(lr=0.1, lam=0.1), GradientProbe(4, noise=False)),
    "similarity, noise": rotating(GradientSimilarity("uniform", radius=2.0, solve=2, every="epoch"), GradientProbe()),
    "similarity, clusters": rotating(GradientSimilarity(lr=0.1, sketch=16, clusters=2), GradientProbe()),
    "robust, clip": robust(Clip(0.1)),
    "robust, clip to median": robust(Clip(), "group"),
    "robust, median": robust(Median()),
    "robust, trimmed mean": robust(TrimmedMean(0.3)),
    "robust, geometric median": robust(GeometricMedian()),
    "robust, krum": robust(Krum(1)),
    "robust, multi-krum": robust(MultiKrum(1), "group"),
    "robust, centered clipping": robust(CenteredClipping(), "batch", Mean(over="holders", server_lr=0.5)),
    "robust, bucketing": robust(Bucketing(2, Median()), "group", ServerOptimizer()),
    "private mean": server(PrivateMean(noise_multiplier=0.5), "group"),
    "private mean, adaptive": server(
        PrivateMean(ServerOptimizer("uniform"), AdaptiveClip(), clip=0.1, noise_multiplier=2.0), "group"
    ),
    "tree": server(TreeMean(noise_multiplier=0.5), "group"),
    "tree, restarted": server(TreeMean(0.5, 0.9, restart_every=2), "group"),
    "robust, widths, median": Case(
        lambda: methods.heterofl(**SHORT, **HALF).with_parts(server=Robust(Median(), Mean("uniform", over="holders")))
    ),
    "robust, coordinates, trimmed mean": Case(
        lambda: methods.submodel_random(**SHORT, by="coordinate", capacities=(1.0, 0.5)).with_parts(
            server=Robust(TrimmedMean(0.3), Mean("uniform", over="holders"))
        )
    ),
    "robust, widths": Case(
        lambda: methods.heterofl(**SHORT, **HALF).with_parts(server=Robust(Clip(0.1), Mean("uniform", over="holders")))
    ),
}


def solver(part: Any, net: str = "batch", **parts: Any) -> Case:
    """Return a case of a solver with a mean."""
    return Case(lambda: compose(Full(), part, Dense(), **parts), net)


SOLVER_CASES: Family = {
    "sgd, momentum and clip": solver(SGD(**SHORT, momentum=0.9, clip=0.5)),
    "sgd, full batch": solver(SGD(0.1, steps=3, batch=None, weight_decay=0.1, proximal=0.1), "group"),
    "adam": solver(Adam(**SHORT)),
    "adam, warm-up": solver(Adam(0.05, steps=3, batch=5, beta=0.5, warmup=2), "group"),
    "dp-sgd": solver(DPSGD(**SHORT, clip=0.5, noise_multiplier=0.5), "group"),
    "dp-sgd, full batch": solver(DPSGD(0.1, steps=2, batch=None, momentum=0.9, clip=0.1), "group"),
    "zeroth order": solver(ZerothOrder(**PROBED), "group"),
    "zeroth order, forward": solver(ZerothOrder(0.01, 2, difference="forward", directions="gauss", clip=0.1), "group"),
    "k-seed": Case(lambda: compose(Full(), KSeed(**PROBED, candidates=5), Seeds(5), SeedSums()), "group"),
    "scaled zeroth order": Case(
        lambda: compose(Full(), ScaledZerothOrder(**SCALARS), Seeds(4), Hiso(smoothing=0.5)), "group"
    ),
    "snapshot": solver(SnapshotSGD(**{**SHORT, "epochs": 2})),
    "pruning": solver(PruningSGD(**SHORT, sparsity=0.5)),
    "threshold": solver(ThresholdSGD(**SHORT)),
    "threshold, by tensor": solver(ThresholdSGD(**SHORT, by="tensor", momentum=0.9), "group"),
    "ditto": solver(Ditto(**SHORT, momentum=0.5, personal_steps=2), "group"),
    "per-fedavg": solver(PerFedAvg(**SHORT, momentum=0.5), "group"),
    "pfedme": solver(PFedMe(0.05, steps=2, batch=5, personal_lr=0.05, inner_steps=2, momentum=0.5)),
    "schedule, exponential": solver(SGD(**SHORT, schedule=Exponential(0.5))),
    "schedule, steps": solver(SGD(**SHORT, schedule=Steps((1, 2), 0.1))),
    "schedule, cosine": solver(SGD(**SHORT, schedule=Cosine()), "group"),
    "tuned": solver(SGD(**SHORT), tune=SGD(0.05, steps=2, batch=5, momentum=0.5)),
    "tuned, masked noise": Case(
        lambda: methods.fedmrn(**SHORT).with_parts(tune=Adam(0.05, steps=1, batch=5)),
    ),
    "supermask": Case(lambda: methods.fedpm(**SHORT).with_parts(parametrization=Supermask(sampled=True)), "group"),
    "supermask, around start": Case(
        lambda: methods.fedpm(**SHORT).with_parts(parametrization=Supermask(scale=0.1, around="start"))
    ),
    "adapter": Case(
        lambda: methods.fedavg(**ADAPTED).with_parts(adapter=LoRA(2, targets=("1",), also=("3.*",))), "dense"
    ),
    "adapter, convolution": Case(lambda: methods.fedavg(**ADAPTED).with_parts(adapter=LoRA(1, train="B")), "group"),
    "adapter, masks": Case(lambda: methods.fedmrn(**ADAPTED).with_parts(adapter=LoRA(2)), "dense"),
    "adapter, supermask": Case(
        lambda: methods.fedpm(**SHORT, scale=0.1, around="start").with_parts(adapter=LoRA(2)), "dense"
    ),
}


def fleet(**more: Any) -> Fleet:
    """Return devices that need some time to train and to send."""
    fast = Device("fast", 3, None, 2e6, **{"up": 2e4, "down": 1e5, "latency": 0.01, **more})
    return Fleet((fast, Device("slow", 2, None, 5e5, **{"up": 5e3, "down": 5e4, **more})))


RADIO = Fleet((Device("phone", 5, None, 1e9, down_bandwidth=2e7, receive_power=0.1),))

LINK_CASES: Family = {
    "perfect": averaging(channel=Perfect()),
    "lossy, half": averaging("group", channel=Lossy(0.5)),
    "wireless": averaging(channel=Wireless(RADIO)),
    "wireless, retries": averaging("group", channel=Wireless(RADIO, fading="amplitude", retries=2)),
    "wireless, retained": Case(
        lambda: methods.onebit_cs(**SENSED, fresh=False, retain="signs"), channel=Wireless(RADIO)
    ),
    "fleet": averaging(channel=FleetLinks(fleet(loss=0.3))),
    "fleet, radio": averaging("group", channel=FleetLinks(RADIO, retries=1)),
    "down, drive": averaging(down=OnWeights(Drive())),
    "down, int4": averaging("group", down=OnWeights(Int4())),
    "down, float16": averaging(down=Dense("float16")),
    "delta": Case(lambda: methods.fedmrn(**SHORT).with_parts(down=Delta())),
    "delta, signs": Case(lambda: methods.signsgd(**SHORT, scale=0.01).with_parts(down=Delta())),
    "delta, shared start": Case(lambda: methods.fedmrns(**SHORT).with_parts(down=Delta(shared_start=True)), "group"),
    "delta, sums": Case(
        lambda: methods.signsgd(**SHORT, scale=0.01).with_parts(
            server=SumThenDecode("uniform"), down=Delta(sums_only=True)
        )
    ),
    "delta, common noise": Case(
        lambda: methods.fedmrn(**SHORT, alpha=0.05, common_noise=True).with_parts(down=Delta()), "group"
    ),
    "delta, masks": Case(
        lambda: methods.fedpm(**SHORT, coded=True).with_parts(down=Delta(sums_only=True, shared_start=True)), "dense"
    ),
    "delta, klms": Case(lambda: methods.klms(**SHORT).with_parts(down=Delta()), "group"),
    "delta, feedback": Case(lambda: methods.drive(**SHORT, feedback=True).with_parts(down=Delta())),
    "delta, eden": averaging(down=Delta(OnWeights(Eden(2)))),
    "delta, half": averaging("group", down=Delta(OnWeights(Eden(2)), Dense("float16"))),
    "delta, top-k": averaging(down=Delta(OnWeights(TopK(0.2)))),
    "delta, adapter": Case(
        lambda: methods.fedmrn(**ADAPTED).with_parts(adapter=LoRA(2), down=Delta(shared_start=True)), "dense"
    ),
    "delta, optimizer": Case(
        lambda: methods.signsgd(**SHORT).with_parts(down=Delta(OnWeights(QSGD(3))), server=ServerOptimizer("uniform")),
        "group",
    ),
    "delta, one-bit": Case(
        lambda: methods.onebit_cs(**SENSED).with_parts(view=Full(), down=Delta(OnWeights(Int4()))), "group"
    ),
    "sums of seeds": Case(
        lambda: methods.fedkseed(**PROBED, candidates=6, dtype="float32").with_parts(down=SendSums()), "group"
    ),
    "sampler, uniform": averaging("group", sampler=Uniform(), options={"per_round": 2}),
    "sampler, by size": averaging(sampler=BySize()),
    "sampler, round robin": averaging("group", sampler=RoundRobin(), options={"per_round": 2}),
    "sampler, poisson": averaging(sampler=Poisson(0.5)),
    "sampler, power of choice": averaging(sampler=PowerOfChoice(4), options={"per_round": 2}),
    "sampler, one candidate": averaging("group", sampler=PowerOfChoice(candidates=1), options={"per_round": 1}),
}


def timed(schedule: Any, make: Callable[[], Method] | None = None, net: str = "batch", **more: Any) -> Case:
    """Return a case with virtual time."""
    made = make or (lambda: methods.fedavg(**SHORT))
    options = {"schedule": schedule, **more.pop("options", {})}
    return Case(made, net, channel=FleetLinks(fleet(loss=0.2)), options=options, **more)


def attacked(attack: str, make: Callable[[], Method] | None = None, net: str = "batch") -> Case:
    """Return a case with hostile clients."""
    options = {"attack": f"{attack},share=0.3", "per_round": 6}
    return Case(make or (lambda: methods.fedavg(**SHORT)), net, clients=6, options=options)


RUN_CASES: Family = {
    "synchronous": timed(Synchronous()),
    "deadline, drop": timed(Deadline(0.5, over=1.25)),
    "deadline, fold": timed(Deadline(0.8, late="fold"), net="group"),
    "fedasync": timed(FedAsync(concurrency=3), options={"rounds": 6}),
    "fedbuff": timed(FedBuff(concurrency=4, buffer=2), net="group"),
    "fedbuff, hinge": timed("fedbuff:concurrency=4,buffer=2,staleness=hinge/0.5/1,max_staleness=3"),
    "fedbuff, eden": timed(FedBuff(concurrency=3, buffer=2), lambda: methods.eden(**SHORT, bits=2)),
    "fedbuff, ditto": timed(FedBuff(concurrency=3, buffer=2), lambda: methods.ditto(**SHORT, personal_epochs=1)),
    "fedbuff, widths": timed(FedBuff(concurrency=3, buffer=2), lambda: methods.heterofl(**SHORT, **HALF)),
    "synchronous, perm": timed(Synchronous(), lambda: methods.perm(**MIXED), "group"),
    "attack, sign flip": attacked("sign-flip:2"),
    "attack, scale": attacked("scale:10", lambda: methods.topk(**SHORT, share=0.2)),
    "attack, noise": attacked("noise:2"),
    "attack, claimed samples": attacked("claim-samples:1000", net="group"),
    "attack, alie": attacked("alie:z=1.5"),
    "attack, inner product": attacked("inner-product", lambda: methods.eden(**SHORT, bits=4)),
    "attack, label flip": attacked("label-flip", lambda: methods.ditto(**SHORT, personal_epochs=1)),
    "attack, backdoor": attacked("backdoor:size=1"),
    "failures": averaging(options={"failure_rate": 0.3}, channel=Perfect()),
    "failures, memory": Case(lambda: methods.scaffold(**SHORT), options={"failure_rate": 0.4}),
    "held-out samples": averaging("group", options={"validate": 4}),
    "largest weight": averaging(options={"max_weight": 1.0}),
    "no anomalies": averaging("group", options={"anomalies": False, "eval_every": 2}),
    "checkpointing": averaging("blocks", options={"checkpointing": True}),
    "one client": Case(lambda: methods.fedavg(**SHORT), clients=4, options={"per_round": 1}),
    "dropout": averaging("dropout"),
    "dropout, ditto": Case(lambda: methods.ditto(**SHORT, personal_epochs=1), "dropout"),
    "dropout, widths": Case(lambda: methods.heterofl(**SHORT, **HALF), "dropout", split="labels:2"),
    "residual": averaging("residual", codec=OnWeights(Drive())),
    "residual, widths": Case(lambda: methods.submodel_random(**SHORT, **HALF, streams=False), "residual"),
    "residual, streams": Case(lambda: methods.submodel_rolling(**SHORT, **HALF, offsets=2), "residual"),
    "frozen": averaging("frozen", codec=OnWeights(Feedback(TopK(0.2)))),
    "iid": Case(lambda: methods.fedadam(**SHORT), split="iid"),
}


def secure(make: Callable[[], Method], net: str = "batch", **more: Any) -> Case:
    """Return a case with secure aggregation: its masks come from the operating system, and the sums are exact."""
    return Case(lambda: secured(make()), net, messages=False, **{"channel": Perfect(), **more})


def guarded(
    mode: Any, make: Callable[[], Method] | None = None, net: str = "group", noise: float = 0.5, **more: Any
) -> Case:
    """Return a case with differential privacy, whose noise follows from the seed."""
    made, case = make or (lambda: methods.fedavg(**SHORT)), {"channel": Perfect(), "messages": mode != "distributed"}
    who: dict[str, Any] = {"per_round": 4, "noise_multiplier": noise, **more}
    return Case(lambda: private(made(), mode, task=task(net), **who), net, **case)


PRIVATE_CASES: Family = {
    "central": guarded("central"),
    "central, fixed clip": guarded("central", clip=0.2, own_sampler=True),
    "central, adam": guarded("central", lambda: methods.fedadam(**SHORT)),
    "central, eden": guarded("central", lambda: methods.eden(**SHORT, bits=4)),
    "central, ditto": guarded("central", lambda: methods.ditto(**SHORT, personal_epochs=1)),
    "central, budget": Case(
        lambda: private(methods.fedavg(**SHORT), "central", epsilon=8.0, clients=5, per_round=4, rounds=3), "group"
    ),
    "local": guarded("local", clip=0.5),
    "local, signs": guarded("local", lambda: methods.signsgd(**SHORT)),
    "local, drive": guarded("local", lambda: methods.drive(**SHORT)),
    "example": guarded("example"),
    "example, momentum": guarded("example", lambda: methods.fedavgm(**SHORT), clip=0.2),
    "distributed": guarded("distributed"),
    "distributed, signs": guarded("distributed", lambda: methods.signsgd(**SHORT)),
    "distributed, skellam": guarded(
        "distributed", lambda: methods.fedavg(**SHORT).with_parts(codec=Skellam(), server=SumThenDecode("uniform"))
    ),
    "distributed, discrete gaussian": guarded(
        "distributed", lambda: methods.fedadam(**SHORT).with_parts(codec=DiscreteGaussian(bits=14, rotate=False))
    ),
    "secure, fedavg": secure(lambda: methods.fedavg(**SHORT)),
    "secure, losses": secure(lambda: methods.fedavg(**SHORT), "group", channel=Lossy(0.05)),
    "secure, fedmrn": secure(lambda: methods.fedmrn(**SHORT)),
    "secure, fedpm": secure(lambda: methods.fedpm(**SHORT)),
    "secure, klms": secure(lambda: methods.klms(**SHORT), "group"),
    "secure, signsgd": secure(lambda: methods.signsgd(**SHORT)),
    "secure, signsgd feedback": secure(lambda: methods.signsgd(**SHORT, feedback=True)),
    "secure, terngrad": secure(lambda: methods.terngrad(**SHORT)),
    "secure, z-signfedavg": secure(lambda: methods.z_signfedavg(**SHORT)),
    "secure, onebit-cs": secure(lambda: methods.onebit_cs(**SENSED), "group"),
    "secure, ditto": secure(lambda: methods.ditto(**SHORT, personal_epochs=1)),
    "secure, adam": secure(lambda: methods.fedadam(**SHORT)),
    "secure, lora": secure(lambda: methods.lora(**SHORT, rank=2), "dense"),
    "secure, sparse graph": Case(
        lambda: secured(methods.fedavg(**SHORT), SecAgg(neighbours=2, dropouts=0.0)),
        clients=6,
        channel=Perfect(),
        options={"per_round": 6},
        messages=False,
    ),
}

FAMILIES: dict[str, Family] = {
    "methods": METHOD_CASES,
    "variants": VARIANTS,
    "codecs": CODEC_CASES,
    "views": VIEW_CASES,
    "servers": SERVER_CASES,
    "solvers": SOLVER_CASES,
    "links": LINK_CASES,
    "runs": RUN_CASES,
    "private": PRIVATE_CASES,
}

CASES: dict[str, Case] = {
    f"{family}/{name}": case for family, cases in FAMILIES.items() for name, case in cases.items()
}
"""All cases, by ``FAMILY/NAME``."""
