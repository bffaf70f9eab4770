"""``python -m replay record [--cases NAME...]`` and ``python -m replay check [NAME...]``, with tests/ on the path.

A name is that of a case, or the beginning of some, such as ``codecs/``.
"""

import argparse
import sys
from collections.abc import Sequence

from replay.cases import CASES
from replay.compare import Difference, compare
from replay.recorder import about, differences, fresh, read, release, write


def chosen(given: Sequence[str]) -> list[str]:
    """Return the cases with these names, or that begin with them; all if none is given."""
    found = [name for name in CASES if not given or any(name.startswith(each) for each in given)]
    if unknown := [each for each in given if not any(name.startswith(each) for name in CASES)]:
        raise SystemExit(f"no case begins with {', '.join(unknown)}")
    return found


def record(given: Sequence[str]) -> int:
    """Record cases; those that are not chosen stay as they are."""
    now = fresh(chosen(given))
    for name, why in now.failed.items():
        print(f"{name}\n{why}")
    if given and {"torch": release(), "rounding": now.rounding} != about():
        print("the record is from another release of torch or another kind of CPU: record all cases")
        return 1
    if not now.failed:
        kept = {name: played for name, played in read().items() if name in CASES} if given else {}
        write({**kept, **now.played}, now.rounding)
        print(f"{len(now.played)} cases recorded")
    return 1 if now.failed else 0


def check(given: Sequence[str]) -> int:
    """Print a table of the cases, and how each differs from its record."""
    recorded, accepted = read(), differences()
    names = [name for name in chosen(given) if name in recorded]
    for name in (name for name in chosen(given) if name not in recorded):
        print(f"{name}: not recorded")
    now = fresh(names)
    if {"torch": release(), "rounding": now.rounding} != about():
        print("the record is from another release of torch or another kind of CPU: last bits differ, and so do digests")
    print(f"{'case':40} {'':5} {'models':>8} {'memory':>8} {'messages':>8}  what differs first")
    wrong = 0
    for name in names:
        if name in now.failed:
            print(f"{name:40} FAILS {now.failed[name].strip().splitlines()[-1]}")
            wrong += 1
            continue
        found = compare(now.played[name], recorded[name])
        wrong += bool(found) != (name in accepted)
        print(row(name, found, name in accepted))
    print(f"{len(names)} cases, {wrong} not as they should be")
    return 1 if wrong else 0


def row(name: str, found: Difference, accepted: bool) -> str:
    """Return the line of a case."""
    if not found:
        return f"{name:40} {'same?' if accepted else 'ok'}"
    numbers = f"{found.models[0]:8.1e} {found.memories[0]:8.1e} {len(found.messages):8}"
    return f"{name:40} {'known' if accepted else 'DIFF':5} {numbers}  {found}"


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m replay", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="record cases").add_argument("--cases", nargs="+", default=[], metavar="NAME")
    commands.add_parser("check", help="compare cases with their record").add_argument(
        "names", nargs="*", metavar="NAME"
    )
    given = parser.parse_args()
    return record(given.cases) if given.command == "record" else check(given.names)


if __name__ == "__main__":
    sys.exit(main())
