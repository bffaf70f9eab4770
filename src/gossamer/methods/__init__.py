"""The recipes: each a handful of lines that reads like its paper.

A recipe is a function with typed, defaulted parameters that returns a :class:`~gossamer.method.Method`, declared with
:func:`~gossamer.methods.registry.recipe`. Its parameters are flags of ``gossamer run``; what they mean is told by its
docstring, or by that of the part they go to. A file of recipes, with parts of their own where they have some, is one
line here.
"""

import types as _types
import typing as _typing

from gossamer.methods.averaging import *
from gossamer.methods.compressed import *
from gossamer.methods.feddyn import *
from gossamer.methods.fednova import *
from gossamer.methods.ifca import *
from gossamer.methods.mixtures import *
from gossamer.methods.registry import METHODS as METHODS
from gossamer.methods.registry import recipe as recipe
from gossamer.methods.scaffold import *
from gossamer.methods.server_optimizers import *
from gossamer.methods.sparse import *
from gossamer.methods.submodels import *
from gossamer.methods.thin_links import *

if not _typing.TYPE_CHECKING:  # which reads imports, and not what is worked out
    __all__ = sorted(
        (n for n, it in globals().items() if not (n.startswith("_") or isinstance(it, _types.ModuleType))),
        key=lambda n: (not n.isupper(), not n[0].isupper(), n),
    )
