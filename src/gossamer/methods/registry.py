"""The list of built-in methods: one line per method.

The command line, the package root, the tables of the documentation and the tests read it. It is plain text, so that
``gossamer methods`` needs no import of torch. A new method is a file with its recipe and one line here.
"""

from typing import TYPE_CHECKING, NamedTuple

from gossamer.core.lazy import Registry

if TYPE_CHECKING:
    from gossamer.methods.recipes import Recipe

ARXIV = "https://arxiv.org/abs/"


class MethodEntry(NamedTuple):
    """A method of the library.

    Args:
        module: module of ``gossamer.methods`` with the recipe
        family: family of methods that it belongs to
        summary: one line on what it does
        paper: arXiv number of its paper, if any
    """

    module: str
    family: str
    summary: str
    paper: str = ""

    @property
    def link(self) -> str:
        """The URL of its paper, or an empty string."""
        return ARXIV + self.paper if self.paper else ""


ENTRIES: dict[str, MethodEntry] = {
    "fedavg": MethodEntry(
        "averaging", "Averaging", "federated averaging: clients train, the server averages their updates", "1602.05629"
    ),
    "fedsgd": MethodEntry("averaging", "Averaging", "one full-batch gradient per client and round", "1602.05629"),
    "fedprox": MethodEntry(
        "averaging",
        "Averaging",
        "FedAvg with a proximal term that pulls clients towards the global model",
        "1812.06127",
    ),
    "fedavgm": MethodEntry("server_optimizers", "Averaging", "FedAvg with server momentum", "1909.06335"),
    "fedadagrad": MethodEntry(
        "server_optimizers", "Averaging", "FedAvg with Adagrad as the server optimizer", "2003.00295"
    ),
    "fedadam": MethodEntry("server_optimizers", "Averaging", "FedAvg with Adam as the server optimizer", "2003.00295"),
    "fedyogi": MethodEntry("server_optimizers", "Averaging", "FedAvg with Yogi as the server optimizer", "2003.00295"),
    "scaffold": MethodEntry(
        "control_variates", "Averaging", "control variates that correct client drift", "1910.06378"
    ),
    "feddyn": MethodEntry(
        "dynamic_regularization",
        "Averaging",
        "dynamic regularization that aligns the clients' stationary points",
        "2111.04263",
    ),
    "fednova": MethodEntry(
        "normalized_averaging", "Averaging", "updates normalized by the number of local steps", "2007.07481"
    ),
    "dp-fedavg": MethodEntry(
        "private_averaging", "Private averaging", "FedAvg with clipped updates and Gaussian noise", "1710.06963"
    ),
    "dp-ftrl": MethodEntry(
        "private_averaging",
        "Private averaging",
        "FedAvg with clipped updates and tree noise, private without sampling",
        "2103.00039",
    ),
    "local": MethodEntry("averaging", "Baselines", "every client trains alone, without communication"),
    "centralised": MethodEntry("averaging", "Baselines", "all samples in one place: an upper bound for comparison"),
    "fedavg-tuned": MethodEntry(
        "averaging", "Personalization", "FedAvg, then each client fine-tunes the global model", "2002.04758"
    ),
    "ditto": MethodEntry(
        "averaging", "Personalization", "a personal model per client, regularized towards the global one", "2012.04221"
    ),
    "per-fedavg": MethodEntry(
        "averaging", "Personalization", "a global model that adapts in one local step (first-order MAML)", "2002.07948"
    ),
    "pfedme": MethodEntry(
        "averaging", "Personalization", "personal models by Moreau envelopes around the global one", "2006.08848"
    ),
    "ifca": MethodEntry(
        "clustered",
        "Personalization",
        "several global models; each client trains the one with the smallest loss",
        "2006.04088",
    ),
    "perm": MethodEntry(
        "mixtures",
        "Personalization",
        "personal mixtures: clients are weighted by gradient similarity in one loop",
        "2310.17761",
    ),
    "perm-two-stage": MethodEntry(
        "mixtures",
        "Personalization",
        "personal mixtures: FedAvg first, then weights, then personal models",
        "2310.17761",
    ),
    "fedspa": MethodEntry(
        "sparse",
        "Sparse personal models",
        "personal sparse masks that move while training (dynamic sparse training)",
        "2201.11380",
    ),
    "sub-fedavg": MethodEntry(
        "sparse", "Sparse personal models", "each client prunes its own model step by step", "2105.00562"
    ),
    "submodel-random": MethodEntry(
        "submodels", "Sub-models", "every client trains a random sub-model, drawn anew each round", "2511.06132"
    ),
    "submodel-rolling": MethodEntry(
        "submodels", "Sub-models", "sub-models are windows, shuffled so that each has its turn", "2511.06132"
    ),
    "heterofl": MethodEntry(
        "submodels", "Sub-models", "every client trains the first channels of each layer, by its capacity", "2010.01264"
    ),
    "fedrolex": MethodEntry(
        "submodels", "Sub-models", "every client trains a rolling window of channels", "2212.01548"
    ),
    "fiarse": MethodEntry(
        "submodels", "Sub-models", "every client trains the largest weights of the model", "2407.19389"
    ),
    "lora": MethodEntry(
        "adapters", "Adapters", "FedAvg of small matrices beside the frozen layers of a network", "2305.05644"
    ),
    "ffa-lora": MethodEntry(
        "adapters", "Adapters", "LoRA with one matrix frozen, so that the mean of updates is exact", "2403.12313"
    ),
    "lora-truncated": MethodEntry(
        "low_rank", "Adapters", "low-rank adapters, truncated to the rank that fits a client", "2401.06432"
    ),
    "flora": MethodEntry(
        "low_rank", "Adapters", "stacked low-rank adapters of unequal ranks, merged after each round", "2409.05976"
    ),
    "fedmrn": MethodEntry(
        "compressed", "Compression", "learned masks over shared random noise: one bit per parameter", "2408.03220"
    ),
    "fedmrns": MethodEntry(
        "compressed", "Compression", "FedMRN with signed masks: one bit per parameter", "2408.03220"
    ),
    "fedpm": MethodEntry(
        "compressed", "Compression", "stochastic masks over frozen random weights: one bit per parameter", "2209.15328"
    ),
    "klms": MethodEntry(
        "side_information",
        "Compression",
        "FedPM with importance-sampled masks: below one bit per parameter",
        "2306.12625",
    ),
    "fedsparsify": MethodEntry(
        "sparsified", "Compression", "progressive pruning over the rounds, by clients or the server", "2204.12430"
    ),
    "fedavg-pruned": MethodEntry(
        "sparsified", "Compression", "magnitude pruning within each round; the pruned model is sent", "1710.01878"
    ),
    "signsgd": MethodEntry(
        "compressed", "Compression", "stochastic signs, unbiased: one bit per parameter", "1905.12938"
    ),
    "z-signfedavg": MethodEntry(
        "compressed", "Compression", "signs of noisy updates, without a scale: one bit per parameter", "2302.02589"
    ),
    "topk": MethodEntry(
        "compressed", "Compression", "the entries of largest magnitude, with their indices", "1809.07599"
    ),
    "ef21": MethodEntry(
        "error_feedback", "Compression", "top-k of the difference between a gradient and its estimate", "2110.03294"
    ),
    "subsample": MethodEntry(
        "compressed", "Compression", "entries chosen by a shared random key; no indices are sent", "1610.05492"
    ),
    "terngrad": MethodEntry(
        "compressed", "Compression", "each entry as -1, 0 or 1 times the largest of its tensor", "1705.07878"
    ),
    "qsgd": MethodEntry(
        "quantized", "Compression", "random levels of a norm per bucket, unbiased, in Elias code", "1610.02132"
    ),
    "int8": MethodEntry("quantized", "Compression", "one byte per entry, with a scale per block"),
    "drive": MethodEntry(
        "compressed", "Compression", "signs after a random rotation, and a scale: one bit per parameter", "2105.08339"
    ),
    "eden": MethodEntry(
        "compressed", "Compression", "a few bits per entry after a random rotation, unbiased", "2108.08842"
    ),
    "quic-fl": MethodEntry(
        "quantized", "Compression", "a few bits per entry after a rotation; every entry is unbiased", "2205.13341"
    ),
    "decomfl": MethodEntry(
        "seeds", "Zeroth order", "scalars along the random directions of a round, from forward passes", "2405.15861"
    ),
    "hiso": MethodEntry(
        "seeds", "Zeroth order", "decomfl with directions scaled by a curvature that no message contains", "2506.02370"
    ),
    "fedkseed": MethodEntry(
        "seeds", "Zeroth order", "sums of scalars along fixed random directions, up and down", "2312.06353"
    ),
    "onebit-cs": MethodEntry(
        "thin_links", "Wireless links", "one gradient of a pruned model, as one-bit compressive measurements"
    ),
    "onebit-cs-paper": MethodEntry(
        "thin_links", "Wireless links", "onebit-cs as in its paper: one Gaussian matrix, lost signs retained, no norms"
    ),
}
"""Methods by their name on the command line."""


def _recipe(name: str) -> str:
    return f"{ENTRIES[name].module}.{name.replace('-', '_')}"


METHODS: "Registry[Recipe]" = Registry("gossamer.methods", {name: _recipe(name) for name in ENTRIES})
"""Recipes by their name on the command line."""
