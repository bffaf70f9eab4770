"""Published values of FedSpa (https://arxiv.org/abs/2201.11380), by data set and by the method names of the cells."""

ACCURACIES: dict[str, dict[str, tuple[float, float, float]]] = {
    "cifar-10": {
        "dst": (83.4, 86.6, 88.2),
        "rsm": (84.5, 82.1, 80.9),
        "ditto": (83.5, 86.4, 87.8),
        "fedavg": (84.8, 82.0, 81.4),
        "sub-fedavg": (71.8, 78.3, 79.6),
        "local": (42.5, 63.6, 69.4),
        "subsampling": (83.0, 78.9, 76.7),
    },
    "cifar-100": {
        "dst": (41.5, 59.0, 66.9),
        "rsm": (54.6, 48.7, 44.6),
        "ditto": (51.9, 56.8, 62.5),
        "fedavg": (55.7, 49.3, 45.0),
        "sub-fedavg": (38.3, 49.2, 55.0),
        "local": (10.3, 28.8, 40.5),
        "subsampling": (49.8, 42.3, 37.6),
        "dst-0.8": (51.5, 62.9, 65.5),
        "dst-0.6": (45.5, 61.4, 67.2),
        "dst-0.4": (38.4, 57.3, 65.2),
        "dst-0.2": (32.0, 49.2, 56.7),
        "dst-uniform": (33.0, 49.3, 56.3),
    },
    "emnist-letters": {
        "dst": (92.2, 95.3, 96.5),
        "rsm": (92.9, 91.9, 90.6),
        "ditto": (92.9, 95.9, 97.0),
        "fedavg": (93.5, 92.3, 90.9),
        "sub-fedavg": (90.7, 94.9, 96.4),
        "local": (77.6, 87.8, 91.6),
        "subsampling": (93.3, 92.0, 91.3),
    },
}
"""Tables 1, 3 and 4: accuracy in IID, A and B. Table 3 gives sparsities: 0.8 is density 0.2."""

COSTS: dict[str, dict[str, tuple[float | None, float]]] = {
    "cifar-10": {
        "dst": (369.2, 173.5),
        "rsm": (369.2, 173.5),
        "ditto": (738.5, 230.0),
        "fedavg": (738.5, 230.0),
        "sub-fedavg": (416.9, 119.8),
        "local": (None, 230.0),
        "subsampling": (553.9, 230.0),
    },
    "cifar-100": {
        "dst": (448.8, 704.8),
        "rsm": (448.8, 704.8),
        "ditto": (897.6, 832.9),
        "fedavg": (897.6, 832.9),
        "sub-fedavg": (612.8, 496.1),
        "local": (None, 832.9),
        "subsampling": (673.2, 832.9),
        "dst-0.8": (718.1, 820.0),
        "dst-0.6": (538.6, 750.0),
        "dst-0.4": (359.0, 650.0),
        "dst-0.2": (179.5, 460.0),
        "dst-uniform": (448.8, 460.0),
    },
    "emnist-letters": {
        "dst": (7.0, 2.0),
        "rsm": (7.0, 2.0),
        "ditto": (14.1, 3.5),
        "fedavg": (14.1, 3.5),
        "sub-fedavg": (9.4, 1.9),
        "local": (None, 3.5),
        "subsampling": (10.5, 3.5),
    },
}
"""Tables 1, 3 and 4, setting B: GB and 10^14 operations of all rounds."""
ROUNDS = {"cifar-10": 1000, "cifar-100": 1000, "emnist-letters": 400}

SPEED: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "iid": {
        "dst": (183.3, 312.3),
        "rsm": (141.3, 237.0),
        "ditto": (370.3, 549.3),
        "fedavg": (140.3, 228.7),
        "sub-fedavg": (None, None),
        "subsampling": (268.3, 457.0),
    },
    "a": {
        "dst": (210.3, 281.3),
        "rsm": (271.3, 471.7),
        "ditto": (334.0, 466.3),
        "fedavg": (256.7, 474.7),
        "sub-fedavg": (235.0, None),
        "subsampling": (523.0, None),
    },
    "b": {
        "dst": (206.3, 270.0),
        "rsm": (339.0, 614.0),
        "ditto": (278.0, 417.7),
        "fedavg": (327.3, 583.7),
        "sub-fedavg": (191.7, None),
        "subsampling": (722.7, None),
    },
}
"""Table 2, CIFAR-10: rounds to 75 and 80 percent; None is more than 1,000 rounds."""
