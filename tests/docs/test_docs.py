"""What the documentation says is true: its code runs, its commands work, its links and tables are whole."""

import ast
import doctest
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from gossamer import METHODS, Options, fedavg, simulate
from gossamer.cli import flags, main
from gossamer.methods.registry import ENTRIES
from gossamer.runs.records import read_metrics
from gossamer.testing import tiny_task
from helpers.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/api/*.md")])
FENCE = re.compile(r"(?P<lead>[^\n]*(?:\n[^\n]+)*)\n\n```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block, and the paragraph before it."""

    lead: str
    language: str
    body: str

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.body.splitlines() if line.startswith("$ ")]

    @property
    def output(self) -> list[str]:
        return [line for line in self.body.splitlines() if line and not line.startswith("$ ")]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[Block]:
    found = [Block(match["lead"], match["language"], match["body"]) for match in FENCE.finditer(read(page))]
    assert len(found) == read(page).count("\n```") // 2, f"{page}: a fenced block needs a blank line before it"
    return [block for block in found if block.language == language]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the examples beside."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Python.


ELSEWHERE = {"docs/fleet.md", "docs/export.md", "docs/sweeps.md"}
"""Pages whose Python needs files or processes: it runs in the tests of the fleet, of exporting and of sweeps."""
WITH_PYTHON = sorted(
    name
    for page in PAGES
    if page.parent != ROOT and "\n```python\n" in page.read_text()
    if (name := page.relative_to(ROOT).as_posix()) not in ELSEWHERE
)


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_on_a_page_runs(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # so that what is defined on the page can be pickled
    for number, block in enumerate(blocks(page, "python")):
        if block.body.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block.body, vars(module), page, page, number)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            vars(module).update(test.globs)
        else:
            exec(compile(block.body, page, "exec"), vars(module))


def test_the_python_in_the_readme_is_the_quickstart_whole() -> None:
    assert [block.body for block in blocks("README.md", "python")] == [read("examples/quickstart.py")]


def test_the_quickstart_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/quickstart.py"), run_name="__main__")
    said = re.search(r"It prints `(accuracy [^`]+ bytes [^`]+)`", read("README.md"))
    assert said is not None
    assert shape(said[1]) == shape(capsys.readouterr().out)


def test_the_quickstart_has_fewer_than_twenty_lines_of_code() -> None:
    text = read("examples/quickstart.py")
    docstring = ast.parse(text).body[0]
    code = [line for line in text.splitlines()[docstring.end_lineno :] if line.strip() and line.strip()[0] != "#"]
    assert len(code) < 20


# Commands.


def shape(line: str) -> str:
    """A line of output without what may differ from one machine or moment to the next."""
    line = re.sub(r"^executor +(one-by-one|side-by-side) ", "executor # ", line)
    return re.sub(r"\s+", " ", re.sub(r"[\d,:]*\d(\.\d+)?( [kMGT]?B)?", "#", line)).strip()


def expanded(words: list[str]) -> list[str]:
    """The words of a command after the shell has expanded patterns of file names."""
    return [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/install.md",
        "docs/command-line.md",
        "docs/submodels.md",
        "docs/personal.md",
        "docs/perm.md",
        "docs/wireless.md",
        "docs/fleet.md",
        "docs/planning.md",
        "docs/robust.md",
        "docs/sweeps.md",
    ],
)
def test_the_commands_on_a_page_work(page: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks(page, "console")
    assert any(command.startswith("gossamer") for block in found for command in block.commands)
    for block in found:
        printed = ""
        for command in block.commands:
            if command.startswith("gossamer "):
                assert main(expanded(shlex.split(command)[1:])) == 0, command
                printed += "\n".join(capsys.readouterr()) + "\n"
        printed_shapes = {shape(line) for line in printed.splitlines()}
        assert [line for line in block.output if shape(line) not in printed_shapes] == []


def test_the_mistakes_on_the_page_are_answered_as_it_shows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("docs/command-line.md", "") if block.commands)
    assert main(shlex.split(block.commands[0])[1:]) == 2
    assert capsys.readouterr().err.splitlines() == block.output
    assert not (place / "runs").exists()


def test_own_recipe_has_its_flags_with_their_meanings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "examples/own_recipe.py:my_recipe"]) == 0
    shown = capsys.readouterr().out
    for words in ("--equal/--no-equal", "--decay", "what each round multiplies the learning rate by"):
        assert words in shown
    assert main(shlex.split("run examples/own_recipe.py:my_recipe --no-equal --rounds 1 --clients 3 --out r")) == 0
    assert "Mean(weights='samples'" in json.loads((place / "r/run.json").read_text())["method"]["server"]


def test_make_run_and_make_test_are_where_a_reader_looks_first() -> None:
    shown = [command for block in blocks("README.md", "console") for command in block.commands]
    targets = re.findall(r"^(\w+):", read("Makefile"), re.M)
    for target in ("run", "test"):
        assert f"make {target}" in shown
        assert target in targets


# Add a codec in ten minutes, to the letter.


@pytest.mark.slow
def test_the_ten_minute_codec_works(tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = []
    for command in follow("CONTRIBUTING.md", "## Add a codec in ten minutes", tmp_path):
        done.append(command.partition(" ")[0])
        match shlex.split(command):
            case ["gossamer", *_]:
                python("-c", ALL_COMMANDS, cwd=tmp_path, say=command)
            case ["python", *words]:
                python(*words, cwd=tmp_path)
            case ["pytest", *words]:
                python("-m", "pytest", "-p", "no:cacheprovider", *words, cwd=tmp_path)
    assert done == [*["gossamer"] * 3, "python", "pytest", "gossamer", "make"]
    codecs = "src/gossamer/parts/codecs"
    python("-m", "ruff", "check", f"{codecs}/eight_bit.py", f"{codecs}/__init__.py", cwd=tmp_path)
    python("-m", "ruff", "format", "--check", f"{codecs}/eight_bit.py", f"{codecs}/__init__.py", cwd=tmp_path)

    up, down, failures = sent(tmp_path / "runs/eight-bit")
    dense_up, dense_down, _ = sent(tmp_path / "runs/dense")
    assert failures == 0
    assert down == dense_down
    assert 0.25 < up / dense_up < 0.26, "about a quarter, as the text says"


ALL_COMMANDS = """
import shlex, sys
from gossamer.cli import main
for command in sys.stdin:
    if (status := main(shlex.split(command)[1:])) != 0:
        sys.exit(f"{command}: exit status {status}")
"""


def python(*words: str, cwd: Path, say: str = "") -> None:
    """Run Python in a process of its own, on one thread, with the source that lies in ``cwd``."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(cwd / "src")}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=env, input=say, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def follow(page: str, title: str, root: Path) -> Iterator[str]:
    """Do what a section says, block by block; commands come back to be run before the next block."""
    section = read(page).partition(title)[2].partition("\n## ")[0]
    made = root
    for match in FENCE.finditer(section):
        block = Block(match["lead"], match["language"], match["body"])
        if block.language == "console":
            yield from (command.partition("  #")[0] for command in block.commands)
        elif found := re.search(r"Make\s+`([^`]+)`", block.lead):
            made = root / found[1]
            made.write_text(block.body)
        else:
            moved = re.search(r"Move it to\s+`([^`]+)`", section)
            added = re.search(r"Add one line to\s+`(\w+)` in\s+`([^`]+)`", block.lead)
            assert moved, "the section does not say where the file belongs"
            assert added, f"do not know what to do with: {block.lead}"
            assert not (root / moved[1]).exists(), f"{moved[1]} is there already: let the guide make another file"
            made.rename(root / moved[1])
            registry = root / added[2]
            before, _, after = registry.read_text().partition(f"{added[1]}: ")
            entries, end, rest = after.partition("    },\n")
            registry.write_text(f"{before}{added[1]}: {entries}{block.body}{end}{rest}")


def sent(run: Path) -> tuple[int, int, int]:
    """Bytes up, bytes down and failures of a run."""
    metrics = read_metrics(run)
    up, down = (sum(sum(record[name].values()) for record in metrics) for name in ("bytes_up", "bytes_down"))
    return up, down, sum(len(record["failures"]) for record in metrics)


# Links and tables.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}, which is not there"


class AnyName(set[str]):
    """Names in modules."""

    def __contains__(self, name: object) -> bool:
        module = str(name).rpartition(".")[0]
        return not {module, f"{module.rpartition('.')[0]}.*"}.isdisjoint(set(self))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    if page.parent.name == "api":  # whose anchors are names in modules: the strict build of the site checks them
        return AnyName(re.findall(r"^::: (\S+)$", page.read_text(), re.M))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_lists_every_page() -> None:
    docs = ROOT / "docs"
    pages = [*docs.glob("*.md"), *docs.glob("reproduction/*.md"), *docs.glob("tutorials/*.ipynb")]
    names = {page.relative_to(docs).as_posix() for page in pages} - {"index.md"}
    assert {name for name in names if f"({name})" not in read("docs/index.md")} == set()


def test_the_table_of_methods_in_the_readme_is_that_of_the_registry() -> None:
    families: dict[str, list[str]] = {}
    for name, entry in ENTRIES.items():
        families.setdefault(entry.family, []).append(f"[`{name}`]({entry.link})" if entry.link else f"`{name}`")
    rows = "\n".join(f"| {family} | {', '.join(names)} |" for family, names in families.items())
    assert f"| family | methods |\n|---|---|\n{rows}\n\n" in read("README.md"), f"it should be\n{rows}"


def test_measured_figures_in_the_readme_are_those_of_the_page_on_speed() -> None:
    names = ("Gossamer, auto for 1000 rounds: \\S+", "Flower", "pfl-research, 2 processes", "FedJAX")
    sections = read("docs/speed.md").split("\n### W")[1:]
    found = [
        [re.search(rf"^\| {name} \| ([\d.]+)( ~)? \|[^|]*\| ([\d,]+) ", text, re.M) for name in names]
        for text in sections
    ]
    rows = re.findall(r"^\| .* \(\*measured\*\) \| (.*) \| not measured \|$", read("README.md"), re.M)
    w1, w2, w3 = ([match for match in row if match] for row in found)
    digits = {1: 2, 2: 1, 3: 1}
    expected = []
    for number, row in ((1, w1), (2, w2), (3, w3)):
        expected.append(" | ".join(f"{float(m[1]):.{digits[number]}f}{m[2] or ''}" for m in row))
        expected += [] if number == 2 else [" | ".join(f"{m[3]} MB" for m in row)]
    board = read("docs/speed.md").partition("\n### pfl-research: CIFAR-10")[2]
    seconds = [re.search(rf"^\| {name} \| ([\d.]+) \|", board, re.M) for name in ("Gossamer, captured", "pfl-research")]
    ours, theirs = (f"{float(found[1]):.2f}" for found in seconds if found)
    assert rows == [*expected, f"{ours} | not measured | {theirs} | not measured"]


def test_every_extra_is_described() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", read("docs/install.md"), re.M)) == set(extras)


def test_terms_of_the_glossary_are_in_order() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", read("docs/glossary.md"), re.M)[1:]
    assert terms == sorted(terms, key=str.lower)
    assert len(set(terms)) == len(terms) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_knows_the_machine_it_was_written_on(page: Path) -> None:
    assert re.findall(r"/(?:home|root|tmp|work|Users)/\S*", page.read_text()) == []


def test_every_command_and_flag_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    text = read("docs/command-line.md")
    assert main([]) == 0
    commands = re.findall(r"^ {2,4}(\w+) ", capsys.readouterr().out, re.M)
    assert {"run", "resume", "show"} <= set(commands)
    assert [name for name in commands if f"`gossamer {name}" not in text] == []
    for method in METHODS:
        assert main(["run", method, "--help"]) == 0
        flags = re.findall(r"^ *(--[a-z-]+)", capsys.readouterr().out, re.M)
        assert {"--rounds", "--lr", "--set"} <= set(flags)
        assert [flag for flag in flags if f"`{flag}" not in text] == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_described_with_its_defaults(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", read("docs/methods.md"), re.M)
    told = set(re.findall(r"\b(\w+=\S+?)[` ]", row))
    if "those of `fedavg`" in row:
        told |= defaults("fedavg") - {"server_lr=1.0"}
    assert told == defaults(name)


def defaults(method: str) -> set[str]:
    parameters = inspect.signature(METHODS[method]).parameters.values()
    return {f"{p.name}={'none' if p.default is None else _written(p.default)}" for p in parameters}


def _written(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else flags.shown(default)


def test_every_option_is_described_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|.*\| `?([^|`]+?)`? \|$", read("docs/python.md"), re.M))
    assert rows == {name: shown(default) for name, default in vars(Options()).items()}


def shown(default: object) -> str:
    return (
        json.dumps(default) if isinstance(default, str) else f"{default:g}" if type(default) is float else f"{default}"
    )


def test_every_field_of_records_and_summaries_is_described(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(fedavg(), tiny_task(), rounds=1, out="run")
    assert main(["show", "run", "--json"]) == 0
    summary, (record,) = json.loads(capsys.readouterr().out), read_metrics(Path("run"))
    before, _, after = read("docs/runs.md").partition("## show --json")
    for fields, text in ((record, before), (record["seconds"], before), (summary, after)):
        assert [name for name in fields if f"`{name}`" not in text] == []
    layout = {path.relative_to("run").parts[0] for path in Path("run").rglob("*")}
    assert [name for name in layout if name not in before] == []
