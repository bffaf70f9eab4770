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
    from gossamer.parts.servers.robust.krum import Krum as Krum
    from gossamer.parts.servers.robust.krum import MultiKrum as MultiKrum
    from gossamer.parts.servers.robust.rules import Bucketing as Bucketing
    from gossamer.parts.servers.robust.rules import CenteredClipping as CenteredClipping
    from gossamer.parts.servers.robust.rules import Clip as Clip
    from gossamer.parts.servers.robust.rules import GeometricMedian as GeometricMedian
    from gossamer.parts.servers.robust.rules import Median as Median
    from gossamer.parts.servers.robust.rules import TrimmedMean as TrimmedMean
    from gossamer.parts.servers.robust.server import Aggregate as Aggregate
    from gossamer.parts.servers.robust.server import Robust as Robust
    from gossamer.parts.servers.robust.server import Rule as Rule
    from gossamer.parts.servers.robust.updates import Updates as Updates

RULES: "Registry[type[Rule]]" = Registry(
    __name__,
    {
        "clip": "rules.Clip",
        "median": "rules.Median",
        "trimmed-mean": "rules.TrimmedMean",
        "geometric-median": "rules.GeometricMedian",
        "krum": "krum.Krum",
        "multi-krum": "krum.MultiKrum",
        "centered-clipping": "rules.CenteredClipping",
        "bucketing": "rules.Bucketing",
    },
)
"""Rules by the name that the command line uses."""

PLAIN = "mean"
"""The value of ``--server`` for the method's own aggregation, which a deployment may have another default for."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, RULES)
