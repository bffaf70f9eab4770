"""The words after ``gossamer run METHOD``: flags of every run, and flags of that method.

Not argparse, because it stops at the first mistake, and takes ``-1e-3`` for a flag.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.cli.devices import FLEET, PLAN
from gossamer.cli.flags import Flag, Recipe, flags
from gossamer.cli.request import CLIENTS, DATA, ROUNDS
from gossamer.core.errors import ConfigError
from gossamer.core.specs import nearest
from gossamer.engines.options import AUTO
from gossamer.runs.report.text import pairs

SUITS = "what suits the data"
OWN = "the method's own"

RUN = [
    Flag("data", str, DATA, "data set: gossamer data list", "NAME"),
    Flag("data_dir", str, "", "where the files of data sets are", "DIR"),
    Flag("model", str, SUITS, "network: gossamer data list", "NAME"),
    Flag("split", str, SUITS, "how samples are dealt, such as dirichlet:0.3", "SPEC"),
    Flag(
        "statistics",
        str,
        "batch",
        "what static batch norms are evaluated by, such as train:10",
        "SPEC",
    ),
    Flag("clients", int, CLIENTS, "number of clients", "N"),
    Flag("task", str, "", "your own task, instead of data, model and split", "FILE.py:NAME"),
    Flag("codec", str, OWN, "what weights go through on their way up, such as eden:2", "SPEC|FILE.py:NAME"),
    Flag("down", str, "dense", "what weights go through on their way down, such as dense:float16", "SPEC|FILE.py:NAME"),
    Flag("solver", str, OWN, "your own solver: how clients train", "FILE.py:NAME"),
    Flag("server", str, OWN, "your own server: what becomes of what arrives", "FILE.py:NAME"),
    Flag(
        "sampler", str, "uniform", "who takes part: uniform, by-size, round-robin, power-of-choice", "SPEC|FILE.py:NAME"
    ),
    Flag("per_round", int, "all", "clients in a round", "K"),
    Flag("rounds", int, ROUNDS, "rounds", "R"),
    Flag("seed", int, 0, "where all randomness comes from", "S"),
    Flag("device", str, "cpu", "where to compute", "cpu|cuda"),
    Flag("executor", str, AUTO, "how the clients of a round are trained; auto measures and chooses", "NAME"),
    Flag("channel", str, "perfect", "what messages meet on their way: perfect, lossy:0.1 or wireless", "SPEC"),
    Flag(FLEET, str, "", "the clients' devices, for --channel wireless", "FILE"),
    Flag(PLAN, str, "", "what gossamer plan wrote: powers, pruning and measurements", "FILE"),
    Flag("failure_rate", float, 0, "share of clients that fail in a round, to rehearse it", "P"),
    Flag("eval_every", int, 1, "evaluate every so many rounds", "K"),
    Flag("out", str, "a new one under runs/", "the run's folder", "DIR"),
]
SET = Flag("set", str, "", "any field of any part; may be given many times", "part.field=value")


class Verb(NamedTuple):
    """What is typed before the flags, and the flags that do not depend on the method."""

    command: str
    flags: Sequence[Flag]

    def of(self, method: str) -> str:
        """The command with a method in it."""
        return self.command.replace("METHOD", method)


RUN_VERB = Verb("gossamer run METHOD", RUN)


class Typed(NamedTuple):
    """Values by the name of their flag, settings in order, flags that nobody knows, and what else is wrong."""

    given: dict[str, Any]
    sets: list[str]
    strange: list[str]
    mistakes: list[str]


def own_flags(recipe: Recipe, name: str, verb: Verb = RUN_VERB) -> list[Flag]:
    """The flags of a method; one that means something else already is refused, but a fleet is one for all."""
    own = flags(recipe, name)
    taken = {"--help", *(flag.word for flag in (*verb.flags, SET) if flag.name != FLEET)}
    for flag in own:
        if clash := taken & flag.words.keys():
            raise ConfigError(f"{name}: its parameter {flag.name!r} clashes with {clash.pop()}: rename it")
        taken |= flag.words.keys()
    return own


def scan(words: Sequence[str], own: Sequence[Flag], verb: Verb = RUN_VERB) -> Typed:
    """Sort words by the flag they belong to; their values stay text."""
    known = {word: (flag, implied) for flag in (*verb.flags, SET, *own) for word, implied in flag.words.items()}
    typed = Typed({}, [], [], [])
    rest = list(words)
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        follows = bool(rest) and not rest[0].startswith("--")
        if not word.startswith("-"):
            typed.mistakes.append(f"{word + equals + text!r} does not belong here: flags begin with --")
        elif word not in known:
            typed.strange.append(word)
            rest = rest[1:] if follows and not equals else rest  # most likely its value
        elif known[word][1] is not None:
            _imply(typed, word, *known[word], text if equals else None)
        elif equals or follows:
            _give(typed, known[word][0], text if equals else rest.pop(0))
        else:
            typed.mistakes.append(f"{word} needs a value: {known[word][0].usage}")
    return typed


def _imply(typed: Typed, word: str, flag: Flag, implied: bool | None, text: str | None) -> None:
    if text is not None:
        typed.mistakes.append(f"{word} takes no value, got {text!r}: write {' or '.join(flag.words)}")
    typed.given[flag.name] = implied


def _give(typed: Typed, flag: Flag, text: str) -> None:
    if flag is SET:
        typed.sets.append(text)
    else:
        typed.given[flag.name] = text


def unknown_flag(word: str, method: str, own: Sequence[Flag], verb: Verb = RUN_VERB) -> str:
    """What to say of a flag that a method does not have."""
    near = nearest(word, [known for flag in (*verb.flags, SET, *own) for known in flag.words])
    hint = f"did you mean {near}?" if near else f"{method} has {', '.join(flag.word for flag in own) or 'none'};"
    return f"unknown flag {word}: {hint} {verb.of(method)} --help lists all"


def verb_help(width: int | None, verb: Verb = RUN_VERB) -> str:
    """Help on a command, whatever the method."""
    return (
        f"usage: {verb.command} [flags]\n\n"
        "METHOD is a name that `gossamer methods` lists, or my_file.py:my_recipe.\n"
        f"`{verb.command} --help` shows the flags of a method along with those of every run:\n\n"
        f"{_listed([*verb.flags, SET], width)}"
    )


def method_help(method: str, sentence: str, own: Sequence[Flag], width: int | None, verb: Verb = RUN_VERB) -> str:
    """Help on a command with a method."""
    head = f"usage: {verb.of(method)} [flags]\n\n{sentence}".rstrip()
    common = _listed([*verb.flags, SET], width)
    return f"{head}\n\nflags of {method}:\n{_listed(own, width)}\n\nflags of every run:\n{common}"


def _listed(known: Sequence[Flag], width: int | None) -> str:
    return pairs([(f"  {flag.usage}", flag.about) for flag in known], width) if known else "  none"
