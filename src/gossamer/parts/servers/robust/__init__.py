"""Robust aggregation: the mean of the updates is replaced by a rule that a minority of hostile clients cannot control.

``Robust`` is the server. Its ``Rule`` combines the updates of a round; the rest of the aggregation, such as the server
learning rate, is that of the ``Mean`` that it replaces:

    method = fedavg()
    method = method.with_parts(server=Robust(Median(), method.server))

On the command line, ``--server median`` does the same. See ``docs/robust.md``.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.parts.servers.robust.bucketing import Bucketing as Bucketing
    from gossamer.parts.servers.robust.centered_clipping import CenteredClipping as CenteredClipping
    from gossamer.parts.servers.robust.clip import Clip as Clip
    from gossamer.parts.servers.robust.geometric_median import GeometricMedian as GeometricMedian
    from gossamer.parts.servers.robust.krum import Krum as Krum
    from gossamer.parts.servers.robust.median import Median as Median
    from gossamer.parts.servers.robust.multi_krum import MultiKrum as MultiKrum
    from gossamer.parts.servers.robust.rule import Aggregate as Aggregate
    from gossamer.parts.servers.robust.rule import Rule as Rule
    from gossamer.parts.servers.robust.server import Robust as Robust
    from gossamer.parts.servers.robust.trimmed_mean import TrimmedMean as TrimmedMean
    from gossamer.parts.servers.robust.updates import Updates as Updates

RULES: "Registry[type[Rule]]" = Registry(
    __name__,
    {
        "clip": "clip.Clip",
        "median": "median.Median",
        "trimmed-mean": "trimmed_mean.TrimmedMean",
        "geometric-median": "geometric_median.GeometricMedian",
        "krum": "krum.Krum",
        "multi-krum": "multi_krum.MultiKrum",
        "centered-clipping": "centered_clipping.CenteredClipping",
        "bucketing": "bucketing.Bucketing",
    },
)
"""Rules by the name that the command line uses."""

PLAIN = "mean"
"""The value of ``--server`` for the method's own aggregation, which a deployment may have another default for."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, RULES)
