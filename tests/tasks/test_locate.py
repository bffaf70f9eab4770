"""Search folders of data sets, downloads, and messages of the command line."""

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks import data as gd
from gossamer.tasks.data import image_sets, locate
from gossamer.tasks.data.locate import Remote, fetch
from helpers.small_files import DIGITS, GREY, TRAIN, fashion_npz, files, load, mnist_idx, same, write_idx

# Where files are looked for.


def test_the_folder_is_the_one_given_else_the_variable_else_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate.folder(None) == Path("data")
    with pytest.raises(
        ConfigError, match=r"mnist: files not found: put one of these\n    mnist\.npz in data\n    train-"
    ):
        gd.load("mnist", key=key(0))
    for folder in ("data", "named", "given"):
        (tmp_path / folder).mkdir()
    mnist_idx(tmp_path / "data")
    assert len(gd.load("mnist", key=key(0)).train) == TRAIN
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "named"))
    with pytest.raises(ConfigError, match="named"):
        gd.load("mnist", key=key(0))
    with pytest.raises(ConfigError, match="given"):
        load("mnist", tmp_path / "given")
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere"):
        load("mnist", tmp_path / "nowhere")


def test_the_error_names_folders_and_all_accepted_file_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load("fashion-mnist", tmp_path)
    for words in (
        "fashion_mnist.npz or fashion-mnist.npz",
        *(f"{stem}[.gz]" for stem in image_sets.STEMS),
        "not downloaded",
    ):
        assert words in str(error.value)
    with pytest.raises(ConfigError, match=r"train/, test/ in .*/femnist or .*/femnist/data"):
        load("femnist", tmp_path)
    for spec in ("cifar-10", "cifar-100"):
        with pytest.raises(ConfigError, match=rf"(?s){spec}-python\.tar\.gz in .*{spec}-binary\.tar\.gz"):
            load(spec, tmp_path)


# Downloads: from a server of our own.


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder that is served, and its address."""
    pytest.importorskip("pooch")
    monkeypatch.setattr(locate, "fetch", fetch)
    served = tmp_path / "web"
    served.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def publish(served: Path, address: str, monkeypatch: pytest.MonkeyPatch, checksum: str | None = None) -> None:
    """Serve a small Fashion-MNIST as the four files of the internet's."""
    write_idx(served, GREY, DIGITS, zipped=True)
    remotes = tuple(
        Remote(path.name, address + path.name, checksum or f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}")
        for path in files(served)
    )
    monkeypatch.setattr(image_sets.FashionMnist, "whole", replace(image_sets.FASHION_MNIST, remotes=remotes))


def test_missing_files_are_downloaded_once_with_a_progress_bar(
    web: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(*web, monkeypatch)
    root = tmp_path / "data"
    root.mkdir()
    data = load("fashion-mnist", root)
    assert "100%" in capsys.readouterr().err
    assert len(data.train) == TRAIN
    assert [path.relative_to(root).as_posix() for path in files(root)] == sorted(
        f"fashion-mnist/{stem}.gz" for stem in image_sets.STEMS
    )
    for path in files(web[0]):
        path.unlink()
    assert same(load("fashion-mnist", root), data)


def test_a_wrong_checksum_leaves_nothing_behind(
    web: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(*web, monkeypatch, checksum="md5:" + "0" * 32)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"(?s) fashion_mnist\.npz .*downloading http.* failed: MD5 hash of downloaded"
    ):
        gd.load("fashion-mnist", key=key(0))
    assert [path.name for path in tmp_path.iterdir()] == ["web"]


@pytest.mark.parametrize(
    ("address", "reason"), [(None, "404 Client Error"), ("http://127.0.0.1:1/", "there is no conn")]
)
def test_without_a_network_the_error_names_the_files_to_add(
    address: str | None, reason: str, web: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web[0], address or web[1], monkeypatch)
    for path in files(web[0]):
        path.unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"(?s) fashion_mnist\.npz .*downloading http.*ubyte\.gz failed: {reason}"):
        gd.load("fashion-mnist", key=key(0))
    assert [path.name for path in tmp_path.iterdir()] == ["web"]


def test_without_pooch_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "fetch", fetch)
    monkeypatch.setattr(locate, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"(?s)put these\n    train_32x32\.mat.*can be downloaded with pooch, which is not installed"
    ):
        load("svhn", tmp_path)
    with pytest.raises(ConfigError, match="it cannot be downloaded"):
        load("femnist", tmp_path)


def test_what_is_on_the_internet_makes_a_form_complete() -> None:
    for image_set in (
        image_sets.FASHION_MNIST,
        image_sets.MNIST,
        image_sets.EMNIST_LETTERS,
        image_sets.SVHN,
        image_sets.CIFAR_10,
        image_sets.CIFAR_100,
    ):
        names = {remote.name for remote in image_set.remotes}
        complete = [form for form in image_set.layouts if all(names & set(accepted) for accepted in form.files)]
        assert complete
        assert all(image_set.name in form.folders for form in complete)
        assert all(len(remote.checksum) == len("md5:") + 32 for remote in image_set.remotes)


# From the command line.


def missing(root: Path) -> None:
    (root / "mnist" / image_sets.STEMS[0]).unlink()


def truncated(root: Path) -> None:
    path = root / "mnist" / image_sets.STEMS[0]
    path.write_bytes(path.read_bytes()[:-1])


def altered(root: Path) -> None:
    path = root / "mnist" / image_sets.STEMS[0]
    path.write_bytes(gzip.compress(path.read_bytes())[:-8] + bytes(8))


def mislabelled(root: Path) -> None:
    path = root / "mnist" / image_sets.STEMS[1]
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")


@pytest.mark.parametrize("harm", [missing, truncated, altered, mislabelled])
def test_a_bad_file_is_exit_status_2_and_nothing_is_written(
    harm: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mnist_idx(tmp_path / "sets")
    line = "run fedavg --data mnist --data-dir sets --model mlp --clients 2 --rounds 1 --out run"
    harm(tmp_path / "sets")
    before = sorted(tmp_path.rglob("*"))
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert "sets/mnist" in printed.err
    assert "ubyte" in printed.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_on_files_records_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fashion_npz(tmp_path)
    line = "run fedavg --data fashion-mnist:norm=fedmrn --data-dir . --model mlp --clients 2 --rounds 1 --out run"
    assert main(line.split()) == 0, capsys.readouterr().err
    assert json.loads(Path("run/run.json").read_text())["task"]["data"] == "fashion-mnist:norm=fedmrn"
    assert main(["show", "run"]) == 0
    assert "fashion-mnist:norm=fedmrn" in capsys.readouterr().out
