"""How much one sample matters: train on S and on S with one sample replaced, under the same keys, and compare.

An algorithm whose model hardly changes is stable, and one that is stable generalises (Deng, Qiao and Mahdavi, "On the
convergence and stability of distributed sub-model training", Definition 4 and Lemma 1). The newcomer is a test sample;
all other samples, the cohorts, batches, masks and messages' noise stay what they were.

>>> from gossamer import fedavg
>>> from gossamer.testing import tiny_task
>>> found = stability(fedavg(), tiny_task(), rounds=2, repeats=2)
>>> len(found.moments), len(found.swaps), found.last.distance > 0
(2, 2, True)
"""

from gossamer.stability.found import Growth, Moment, Stability, Swap
from gossamer.stability.measure import growth, stability

__all__ = ["Growth", "Moment", "Stability", "Swap", "growth", "stability"]
