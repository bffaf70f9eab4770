"""A run folder from somebody else: looking executes nothing, and other commands only what the user agreed to."""

import importlib
import json
import py_compile
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gossamer import ConfigError, RunError, load_run, resume
from gossamer.cli import main, trust, user_files
from gossamer.core import files
from gossamer.runs.records import read_metrics
from helpers.records import write_records

MINE = """
from pathlib import Path

from gossamer import fedavg

Path("executed").write_text("")


def mine():
    return fedavg(epochs=1)


def other():
    return fedavg(epochs=1)
"""
RUN = "run mine.py:mine --data two-populations --clients 3 --rounds 1 --executor one-by-one --out run"


class Said(NamedTuple):
    status: int
    out: str
    err: str


def gossamer(line: str) -> Said:
    """Run a command as in a process of its own: user files are imported anew."""
    for name in [name for name in sys.modules if name.startswith("gossamer_user_")]:
        del sys.modules[name]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = main(shlex.split(line))
    return Said(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``mine.py`` and a run of it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv(trust.VARIABLE, str(home / "config"))
        Path("mine.py").write_text(MINE)
        assert gossamer(RUN).status == 0
    return home


@pytest.fixture
def mine(kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The run, as its owner left it; nothing is executed yet."""
    monkeypatch.chdir(kept)
    shutil.copytree(kept / "config", tmp_path / "config")
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "config"))
    if (kept / "work").exists():
        shutil.rmtree(kept / "work")
    shutil.copytree(kept / "run", kept / "work")
    (kept / "mine.py").write_text(MINE)
    (kept / "executed").unlink(missing_ok=True)
    return kept


@pytest.fixture
def strange(mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The run, at somebody who has started none with its file."""
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "elsewhere"))
    return mine


def executed() -> bool:
    return Path("executed").exists()


@pytest.mark.parametrize(
    "line",
    ["show work", "show work --json", "show work --html", "show work --config", "compare work run", "runs ."],
)
def test_looking_executes_nothing(mine: Path, line: str) -> None:
    assert gossamer(line).status == 0
    assert not executed()


def test_paper_costs_execute_nothing(mine: Path) -> None:
    forged(mine / "work", lambda request: request | {"method": "fedspa", "server": request["method"]})
    said = gossamer("show work --paper-costs")
    assert said.status == 2
    assert "show executes no file of a run" in said.err
    assert not executed()


def test_the_page_says_what_it_may_lack(mine: Path) -> None:
    said = gossamer("show work --html")
    assert "mine.py: not executed" in said.err
    assert (mine / "work/report.html").is_file()


@pytest.mark.parametrize("line", ["resume work --rounds 2", "export work --format safetensors"])
def test_a_run_of_ones_own_needs_no_question(mine: Path, line: str) -> None:
    assert gossamer(line).status == 0
    assert executed()


@pytest.mark.parametrize("line", ["resume work --rounds 2", "export work --format safetensors", "resume work --lr 1"])
def test_a_run_of_somebody_else_executes_nothing_unless_trusted(strange: Path, line: str) -> None:
    said = gossamer(line)
    assert said.status == 2
    assert f"work executes {strange / 'mine.py'}, with which you have started no run on this machine" in said.err
    assert "read it, and if you trust it, add --trust" in said.err
    assert not executed()


def test_trust_is_remembered_by_digest_and_not_in_the_run(strange: Path, tmp_path: Path) -> None:
    before = (strange / "work/run.json").read_bytes()
    assert gossamer("export work --format safetensors --trust").status == 0
    assert executed()
    assert gossamer("export work --format safetensors").status == 0, "the second time, nobody asks"
    assert (strange / "work/run.json").read_bytes() == before
    ((digest, name),) = map(json.loads, (tmp_path / "elsewhere" / trust.FILE).read_text().splitlines())
    assert (digest, name) == (files.digest(strange / "mine.py"), f"{strange / 'mine.py'}:mine")


@pytest.mark.parametrize("flag", ["", " --trust"])
@pytest.mark.parametrize("line", ["resume work --rounds 2", "export work --format safetensors"])
def test_a_file_that_was_altered_since_is_not_executed_at_all(mine: Path, line: str, flag: str) -> None:
    (mine / "mine.py").write_text(MINE + "\n")
    said = gossamer(line + flag)
    assert said.status == 1
    assert "mine.py was changed since the run was started" in said.err
    assert not executed()


def forged(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the request of a run, with a valid digest."""
    about = files.from_json(run / "run.json")
    files.write(run / "run.json", files.to_json(about | {"request": change(about["request"])}))


def test_another_name_in_a_trusted_file_needs_a_new_agreement(mine: Path) -> None:
    file, digest = mine / "mine.py", files.digest(mine / "mine.py")
    forged(mine / "work", lambda r: r | {"method": f"{file}:other", "digests": {f"{file}:other": digest}})
    said = gossamer("export work")
    assert said.status == 2
    assert "add --trust" in said.err
    assert not executed()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for user files; what they import is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget_imports(tmp_path)


def forget_imports(folder: Path) -> None:
    """Let this process be as one that has imported nothing from a folder."""
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        if any(f"{folder}/" in str(vars(module).get(place)) for place in ("__file__", "__path__")):
            del sys.modules[name]


@pytest.fixture
def helped(alone: Path) -> Path:
    """A run of a file that imports another one, which imports a package."""
    Path("mine.py").write_text("from helping import epochs\n" + MINE.replace("epochs=1", "epochs=epochs()"))
    Path("helping.py").write_text("def epochs():\n    from deep.inside import ONE\n    return ONE\n")
    Path("deep").mkdir()
    Path("deep/__init__.py").write_text("")
    Path("deep/inside.py").write_text("from . import beside\nONE = 1\n")
    Path("deep/beside.py").write_text("")
    assert gossamer(RUN).status == 0
    forget_imports(alone)
    Path("executed").unlink()
    return alone


def test_imports_of_a_user_file_are_found(helped: Path) -> None:
    found = user_files.imports(Path("mine.py"))
    assert [str(file.relative_to(helped)) for file in found] == [
        "deep/__init__.py", "deep/beside.py", "deep/inside.py", "helping.py"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["helping.py", "deep/inside.py", "deep/beside.py"])
def test_a_changed_import_of_a_trusted_file_needs_a_new_agreement(helped: Path, name: str) -> None:
    """In version 0.2 (86513a0), ``resume`` executed the changed import without a question."""
    with Path(name).open("a") as file:
        file.write("open('evil', 'w').close()\n")
    said = gossamer("resume run --rounds 2")
    assert said.status == 2
    assert name in said.err
    assert "as these files are now: read it, and if you trust it, add --trust" in said.err
    assert not Path("evil").exists()
    assert not Path("executed").exists()
    assert gossamer("resume run --rounds 2 --trust").status == 0
    assert Path("executed").exists()
    assert gossamer("resume run --rounds 3").status == 0, "the agreement is remembered"


EVIL = "open('evil', 'w').close()\n"
USES = "from pkg.sub import mod\n"


def write_all(contents: dict[str, str]) -> None:
    for name, text in contents.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def compiled(source: str, file: str) -> None:
    """Write compiled code that Python takes without a look at its source."""
    Path("evil.txt").write_text(source)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile("evil.txt", cfile=file, doraise=True, invalidation_mode=unchecked)


DEEP = {"pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/sub/deep.py": "g = 1\n"}


@pytest.mark.parametrize(
    ("own", "others", "changed"),
    [
        (USES, {**DEEP, "pkg/sub/mod.py": "from .deep import g\n"}, "pkg/sub/deep.py"),
        (USES, {**DEEP, "pkg/sub/mod.py": "from ..up import g\n", "pkg/up.py": "g = 1\n"}, "pkg/up.py"),
        (USES, {"pkg/sub/mod.py": "from .deep import g\n", "pkg/sub/deep.py": "g = 1\n"}, "pkg/sub/deep.py"),
        ("from pkg import *\n", {"pkg/__init__.py": "__all__ = ['x']\n", "pkg/x.py": ""}, "pkg/x.py"),
        ("import importlib\nimportlib.import_module('lit')\n", {"lit.py": ""}, "lit.py"),
        ("from importlib import import_module\nimport_module(name='lit')\n", {"lit.py": ""}, "lit.py"),
        ("__import__('lit')\n", {"lit.py": ""}, "lit.py"),
        ("__import__('pkg.sub', fromlist=['deep'])\n", DEEP, "pkg/sub/deep.py"),
        ("import importlib as i\ni.import_module('.deep', 'pkg.sub')\n", DEEP, "pkg/sub/deep.py"),
        (
            USES,
            {**DEEP, "pkg/sub/mod.py": "import importlib\nimportlib.import_module('.deep', __package__)\n"},
            "pkg/sub/deep.py",
        ),
        (USES, {**DEEP, "pkg/sub/mod.py": "__import__('deep', globals(), None, ['g'], 1)\n"}, "pkg/sub/deep.py"),
    ],
)
def test_whatever_names_a_file_of_the_user_counts(alone: Path, own: str, others: dict[str, str], changed: str) -> None:
    write_all({"mine.py": own + MINE, **others})
    assert gossamer(RUN).status == 0
    forget_imports(alone)
    Path("executed").unlink()
    with Path(changed).open("a") as file:
        file.write(EVIL)
    said = gossamer("resume run --rounds 2")
    assert said.status == 2
    assert changed in said.err
    assert "add --trust" in said.err
    assert not Path("evil").exists()
    assert not executed()
    assert gossamer("resume run --rounds 2 --trust").status == 0
    assert Path("evil").exists(), "the file is imported, so that the question was the right one"


TAG = sys.implementation.cache_tag


@pytest.mark.parametrize("name", ["helper", "box/inside"])
def test_compiled_files_are_not_executed_for_their_source(alone: Path, name: str) -> None:
    write_all({f"{name}.py": "", "mine.py": f"import {name.replace('/', '.')}\n" + MINE})
    assert gossamer(RUN).status == 0
    assert not list(alone.rglob(f"{Path(name).name}.*.pyc")), "none is written, either"
    forget_imports(alone)
    file = Path(name)
    compiled(EVIL, str(file.parent / f"__pycache__/{file.name}.{TAG}.pyc"))
    assert gossamer("resume run --rounds 2").status == 0
    assert not Path("evil").exists()


@pytest.mark.parametrize(
    "file",
    ["helper/__init__.pyc", "helper/__init__.py", "helper.so", "helper.abi3.so", f"helper{EXTENSION_SUFFIXES[0]}"],
)
def test_a_file_that_wins_over_a_known_one_needs_a_new_agreement(alone: Path, file: str) -> None:
    write_all({"helper.py": "", "mine.py": "import helper\n" + MINE})
    assert gossamer(RUN).status == 0
    forget_imports(alone)
    Path("executed").unlink()
    compiled(EVIL, file)
    said = gossamer("resume run --rounds 2")
    assert said.status == 2
    assert file in said.err
    assert "add --trust" in said.err
    assert not Path("evil").exists()


def test_a_module_without_source_counts_and_can_be_imported(alone: Path) -> None:
    write_all({"mine.py": "import helper\n" + MINE})
    compiled("", "helper.pyc")
    assert gossamer(RUN).status == 0
    forget_imports(alone)
    compiled(EVIL, "helper.pyc")
    assert "helper.pyc" in gossamer("resume run --rounds 2").err
    assert not Path("evil").exists()
    assert gossamer("resume run --rounds 2 --trust").status == 0
    assert Path("evil").exists()


@pytest.mark.parametrize("name", ["colorsys", "not_installed"])
def test_the_folder_of_a_user_file_answers_for_no_module_of_others(alone: Path, name: str) -> None:
    """Gossamer imports matplotlib and others late, and tries some that may not be installed."""
    write_all({"mine.py": MINE})
    assert gossamer(RUN).status == 0
    sys.modules.pop(name, None)
    Path(f"{name}.py").write_text(EVIL)
    importlib.invalidate_caches()
    with suppress(ModuleNotFoundError):
        importlib.import_module(name)
    assert not Path("evil").exists()
    assert (name in sys.modules) == (name == "colorsys")


def test_a_user_file_imports_from_its_folder_late_and_by_a_computed_name(alone: Path) -> None:
    late = MINE.replace("    return", "    __import__('importlib').import_module('help' + 'er')\n    return")
    write_all({"helper.py": "import second\n", "second.py": EVIL, "mine.py": late})
    assert gossamer(RUN).status == 0
    assert Path("evil").exists()


def test_a_file_that_an_installed_module_hides_is_refused(alone: Path) -> None:
    write_all({"colorsys.py": EVIL, "mine.py": "import colorsys\n" + MINE})
    said = gossamer(RUN)
    assert said.status == 2
    assert f"not {alone / 'colorsys.py'} beside mine.py: give your file another name" in said.err
    assert not Path("evil").exists()


@pytest.mark.parametrize("change", [{"digests": {}}, {"codec": "mine.py:other"}])
def test_a_file_without_full_path_and_digest_is_not_executed(mine: Path, change: dict[str, Any]) -> None:
    forged(mine / "work", lambda request: request | change)
    said = gossamer("resume work --trust")
    assert said.status == 1
    assert "without its full path and digest: nothing is executed" in said.err
    assert not executed()


@pytest.mark.parametrize("change", [{}, {"sets": [], "codec": ["x"]}, {"sets": [], "strange": 1}, {"sets": 3}])
def test_a_request_that_no_release_writes_is_refused(mine: Path, change: dict[str, Any]) -> None:
    forged(mine / "work", lambda request: {"method": "fedavg", **change})
    for line in ("resume work", "export work", "show work --html"):
        said = gossamer(line)
        assert said.status == 1
        assert "run.json has a request that this release cannot read" in said.err


def test_python_asks_too(strange: Path) -> None:
    result = load_run("work")
    assert result.accuracy > 0
    for build in (lambda: result.model, lambda: resume("work", rounds=2)):
        with pytest.raises(ConfigError, match=r"add --trust \(in Python trust=True\)"):
            build()
    assert not executed()
    load_run("work", trust=True)  # only its models need the file
    assert not executed()
    assert len(resume("work", rounds=2, trust=True).metrics) == 2
    assert executed()


def test_where_nothing_can_be_kept_the_run_starts_and_says_so(
    mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "file"))
    with pytest.warns(trust.TrustWarning, match="cannot be used: .* use --trust when you resume"):
        trust.remember({"mine.py:mine": "digest"})


DAMAGED = [b"nonsense", b"", b"7", b"null", b"true", b'"ab"', b'{"1": 2, "3": 4}', b"[1]", b'["1", "c.py:c", "2"]']
DAMAGED += [b"[1, 2]", b'["1", null]', b'[["1"], "c.py:c"]', b"[" * 100_000, b"\xff\xfe\x00", b"\x00", b'["1", "c.py']


def damage_named(line: bytes) -> AbstractContextManager[Any]:
    """Expect the warning about line 2 of the file, unless the line is empty."""
    text = f"{re.escape(str(trust.file_of_user()))}: line 2 cannot be read: .*; delete such lines"
    return pytest.warns(trust.TrustWarning, match=text) if line else nullcontext()


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:20]))
def test_a_damaged_line_is_no_agreement(line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "config"))
    trust.remember({"a.py:a": "1"})
    with trust.file_of_user().open("ab") as file:
        file.write(line)
    with damage_named(line):
        trust.remember({"a.py:a": "1", "b.py:b": "2"})
    with damage_named(line):
        assert trust.trusted() == {("1", "a.py:a"), ("2", "b.py:b")}, "lines before and after it are whole"
    assert trust.file_of_user().stat().st_mode & 0o077 == 0, "it is the user's own"


def test_a_file_that_cannot_be_read_does_not_stop_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path))
    trust.file_of_user().mkdir()
    with pytest.warns(trust.TrustWarning, match=r"trusted\.jsonl cannot be used: Is a directory: set GOSSAMER_CONFIG"):
        trust.remember({"a.py:a": "1"})


def test_an_app_is_known_by_all_its_files(tmp_path: Path) -> None:
    assert trust.app_digest(tmp_path) == {}
    app = tmp_path / trust.APP
    (app / "inner/__pycache__").mkdir(parents=True)
    (app / "app.py").write_text("1")
    (app / "inner/more.py").write_text("2")
    before = trust.app_digest(tmp_path)
    assert list(before) == [str(app.resolve())]
    (app / "inner/__pycache__/more.pyc").write_text("compiled")
    assert trust.app_digest(tmp_path) == before
    trust.require_trust(tmp_path, before, True)
    trust.require_trust(tmp_path, before, False)
    (app / "inner/more.py").write_text("3")
    with pytest.raises(ConfigError, match="deploy/app, with which you have started no run on this machine"):
        trust.require_trust(tmp_path, trust.app_digest(tmp_path), False)
    (app / "link.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(RunError, match=r"link.py is not a plain file"):
        trust.app_digest(tmp_path)


def test_an_app_that_was_not_written_here_is_not_executed(mine: Path) -> None:
    about = files.from_json(mine / "work/run.json")
    files.write(mine / "work/run.json", files.to_json(about | {"deployment": {}}))
    (mine / "work" / trust.APP).mkdir(parents=True)
    (mine / "work" / trust.APP / "app.py").write_text(MINE)
    said = gossamer("resume work")
    assert said.status == 2
    assert "work/deploy/app, with which you have started no run on this machine" in said.err
    (mine / "work/deploy").rename(mine / "work/elsewhere")
    (mine / "work/deploy").symlink_to(mine / "work/elsewhere")
    assert "deploy is a symbolic link" in gossamer("resume work --trust").err


def test_a_forged_entry_gives_an_error_and_no_traceback(mine: Path) -> None:
    forged_records = [record | {"accuracy": {"x": 1}} for record in read_metrics(mine / "work")]
    write_records(mine / "work", forged_records)
    for line in ("show work", "compare work run"):
        said = gossamer(line)
        assert said.status == 1
        assert "work holds what this release cannot read (TypeError: " in said.err
    assert "work is damaged: work holds what this release cannot read" in gossamer("runs .").out
