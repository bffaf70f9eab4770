"""The command ``methods``. The list needs no torch; the flags of one method do."""

from collections.abc import Iterator

from gossamer.cli.common import sentence
from gossamer.cli.parser import Parser
from gossamer.methods.registry import ENTRIES
from gossamer.runs.report import text


def methods(words: list[str]) -> int:
    """``gossamer methods [NAME]``."""
    parser = Parser(prog="gossamer methods", description="List the methods, or show one with its flags and parts.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a method, or FILE.py:RECIPE (default: list all)")
    name = parser.parse_args(words).name
    if name is None:
        print(text.table(("method", "paper", "what it does"), list(_listed())))
    else:
        print("\n".join(_described(name)))
    return 0


def _listed() -> Iterator[tuple[str, str, str]]:
    """Yield a row per method, below a row with the name of its family."""
    for number, family in enumerate(dict.fromkeys(entry.family for entry in ENTRIES.values())):
        yield from [("", "", "")] * (number > 0)
        yield family.upper(), "", ""
        for name, entry in ENTRIES.items():
            if entry.family == family:
                yield name, entry.link, entry.summary


def _described(name: str) -> Iterator[str]:
    """Yield the description of one method, its flags and its parts."""
    from gossamer.cli.build import find_recipe
    from gossamer.cli.flags import defaults, shown
    from gossamer.cli.run_args import own_flags
    from gossamer.cli.settings import settable

    recipe = find_recipe(name)
    own = own_flags(recipe, name)
    yield f"{name}: {sentence(recipe)}" if sentence(recipe) else name
    if name in ENTRIES and ENTRIES[name].link:
        yield f"paper: {ENTRIES[name].link}"
    rows = [(flag.usage, shown(flag.default), flag.meaning) for flag in own]
    yield "\n" + (text.table(("flag", "default", "meaning"), rows) if rows else "It has no flags.")
    if method := defaults(recipe):
        yield "\nparts; --set part.field=value changes their fields:"
        yield text.pairs([(name, repr(part)) for name, part in settable(method).items()])
