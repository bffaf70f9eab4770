"""Pages work in a browser: a report of a run, and pages of the site, without an error in the console."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from gossamer.cli import main

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser on the path: none of {', '.join(NAMES)} is there"),
]

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root needs; all pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=5000",
    "--dump-dom",
)
CONSOLE = re.compile(r"CONSOLE[^\]]*\] \"(.*)\", source: (\S*)")


class Shown(NamedTuple):
    """What a browser made of a page, and what it complained of."""

    dom: str
    errors: list[str]


def show(address: str, profile: Path) -> Shown:
    """Load a page in a browser that has never seen one."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Shown(done.stdout, [f"{text} ({source})" for text, source in CONSOLE.findall(done.stderr)])


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The files of a folder at an address of this machine, and the requests for files that are not there."""
    missing: list[str] = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def log_error(self, *_: object) -> None:
            missing.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", missing
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("throw new Error('torn thread')", "torn thread"),
        ("console.error('frayed')", "frayed"),
        ("Promise.reject(new Error('unkept'))", "unkept"),
    ],
)
def test_an_error_on_a_page_is_noticed(script: str, error: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>t</title><p>whole</p><script>{script}</script>")
    shown = show(page.as_uri(), tmp_path / "profile")
    assert "whole" in shown.dom
    assert any(error in text for text in shown.errors)


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><link rel=stylesheet href=missing.css><p>whole</p>")
    with served(tmp_path) as (address, missing):
        show(f"{address}/page.html", tmp_path / "profile")
    assert "/missing.css" in missing


def test_the_report_of_a_run_has_no_errors(tmp_path: Path) -> None:
    words = "run fedavg --rounds 2 --clients 3 --epochs 1 --executor one-by-one --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    shown = show((tmp_path / "run/report.html").as_uri(), tmp_path / "profile")
    assert shown.errors == []
    assert "<svg" in shown.dom
    assert "Accuracy" in shown.dom


@pytest.mark.parametrize("page", ["", "tutorials/first-run/", "api/codecs/"])
def test_a_page_of_the_site_has_no_errors(page: str, site: Path, tmp_path: Path) -> None:
    with served(site) as (address, missing):
        shown = show(f"{address}/{page}", tmp_path / "profile")
    assert (shown.errors, missing) == ([], [])
    assert re.search(r'<html[^>]*class="[^"]*\bjs\b', shown.dom), "the scripts of the theme ran"
