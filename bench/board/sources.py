"""Where the numbers of the workloads come from: links to the versions of files that were read."""


def cite(repository: str, commit: str, path: str) -> str:
    """Return a link to a version of a file."""
    return f"[{repository}, {path}](https://github.com/{repository}/blob/{commit}/{path})"


def flute(path: str, commit: str = "405ac0960620d4452d5b8b38d91482dd19eb7b14") -> str:
    return cite("microsoft/msrflute", commit, path)


def pfl(path: str, commit: str) -> str:
    return cite("apple/pfl-research", commit, path)


def blazefl(path: str, commit: str) -> str:
    return cite("blazefl/benchmarks", commit, path)


def fedml(folder: str, commit: str) -> str:
    return cite("FedML-AI/FedML", commit, f"python/fedml/data/{folder}/README.md")


FLUTE_README = flute("README.md", "0e8762b0e8be926514921651718f2f2b1c121d54")
FLUTE_TASKS = f"{FLUTE_README}, table of tasks"
FLUTE_TIMES = f"{FLUTE_README}, table of FedML Comparison"
FLUTE_GPUS = "4 processes with NCCL; the kind of GPU is not stated"
BLAZEFL_README = cite("blazefl/blazefl", "07f152cfd84fe85d024140432ed1c47101a9d4b0", "README.md")
BLAZEFL_TIMES = f"{BLAZEFL_README}, plots of Simulation Benchmarks"
BLAZEFL_GPUS = "4 Quadro RTX 6000, AMD EPYC 7542 (32 cores)"
PFL_PAPER = "[arXiv:2404.06430](https://arxiv.org/abs/2404.06430) has it; the paper could not be read here"
PFL_GPU = "1 A100 (40 GB), 10 CPU cores"

FEMNIST = {
    "clients, cohort, batch, epochs, learning rate, rounds": FLUTE_TASKS,
    "network": flute("experiments/cv_cnn_femnist/model.py"),
    "671,585 training samples": fedml("FederatedEMNIST", "ed627f73eb76a49dc4cb805f8f1eb0ce1b86bfe0"),
    "processes": flute("experiments/cv_cnn_femnist/README.md"),
}
FED_CIFAR100 = {
    "clients, cohort, batch, epochs, learning rate, rounds": FLUTE_TASKS,
    "network": flute("experiments/cv_resnet_fedcifar100/model.py"),
    "50,000 training samples": fedml("fed_cifar100", "cee3f7ff8f6b6d29c9414edc7aa3c62af6c3f500"),
    "images of 32 x 32, not cropped": flute("experiments/cv_resnet_fedcifar100/dataloaders/dataset.py"),
    "processes": flute("experiments/cv_resnet_fedcifar100/README.md"),
}
SHAKESPEARE = {
    "clients, cohort, batch, epochs, learning rate, rounds": FLUTE_TASKS,
    "network": flute("experiments/nlp_rnn_fedshakespeare/model.py"),
    "sequences of 80 characters": flute("experiments/nlp_rnn_fedshakespeare/dataloaders/preprocessing.py"),
    "16,068 training examples": fedml("fed_shakespeare", "b20a2e2bb09dfaaa394047be93f6ac180c05b2be"),
    "processes": flute("experiments/nlp_rnn_fedshakespeare/README.md"),
}
PFL_CIFAR10 = {
    "samples, cohort, batch, epochs, learning rate, rounds": pfl(
        "benchmarks/image_classification/configs/baseline.yaml", "2c77da1b23441af78a0d971e7d7816f6757d722c"
    ),
    "1,000 clients": "50,000 images divided by 50 per client",
    "network": pfl("benchmarks/model/pytorch/cnn.py", "06651ed83858eea96ce1eb468729031d13743554"),
    "hardware": pfl("publications/pfl/flower/cifar10/README.md", "9a7155ab30823c22ec8d1f24682f6696ac5b81a8"),
}
BLAZEFL = {
    "clients, rounds, epochs, batch, learning rate": blazefl(
        "blazefl-case/config.py", "04ba59378f159988d4815e33983e9db9f90c26bf"
    ),
    "500 samples per client, all for training": blazefl(
        "blazefl-case/dataset/dataset.py", "9e136d4110a312e38e4361b1266c318e0cfe1325"
    ),
    "network": blazefl("flower-case/example/models.py", "818b2cf1c9467ca195eb1f02885c4f8c2092d0a5"),
    "hardware": f"{BLAZEFL_README}, Execution Environment",
}
