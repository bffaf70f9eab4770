"""The site builds without a warning, loads nothing from other servers, and has an anchor for every public name."""

import importlib
import inspect
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gossamer
from helpers.paths import ROOT
from test_public import PACKAGES

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""Elements whose content a browser fetches, with the attribute that says where from."""


class Page(HTMLParser):
    """What a page loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if address := found.get(LOADED.get(tag, "")):
            self.loads.append(address)


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    found = {page.relative_to(site): Page(page.read_text()).loads for page in pages}
    assert {f"{page}: {url}" for page, urls in found.items() for url in urls if re.match(r"(https?:)?//", url)} == set()
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)\s]*", style.read_text()) == [], style.name


@pytest.mark.parametrize(
    "text", ["<script src='https://cdn.example.org/x.js'></script>", "<img src='//example.org/i'>"]
)
def test_what_a_page_loads_is_found(text: str) -> None:
    assert len([url for url in Page(text).loads if re.match(r"(https?:)?//", url)]) == 1


def public_names() -> Iterator[tuple[str, str]]:
    """Every public name as it is imported, and where it is defined."""
    for package in ("", *(f".{name}" for name in PACKAGES), ".engines.executors", ".engines.flower"):
        module = importlib.import_module("gossamer" + package)
        for name in module.__all__:
            yield f"{module.__name__}.{name}", defined(getattr(module, name), module.__name__, name)


def defined(value: object, package: str, name: str) -> str:
    """The module of a class or function and its name there; other values have none, and are found by name."""
    if inspect.isclass(value) or inspect.isfunction(value):
        where = value.__module__, value.__qualname__
        return ".".join(where) if where[0].startswith("gossamer") else name
    return name


def test_every_public_name_has_an_anchor(site: Path) -> None:
    anchors = {anchor for page in site.glob("api/*/index.html") for anchor in Page(page.read_text()).anchors}
    names = {anchor.rpartition(".")[2] for anchor in anchors}
    missing = {public: where for public, where in public_names() if where not in (anchors if "." in where else names)}
    assert missing == {}


def test_every_public_module_has_a_page() -> None:
    pages = [page.read_text() for page in ROOT.glob("docs/api/*.md")]
    listed = {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.M)}
    for package in [name.removesuffix(".*") for name in listed if name.endswith(".*")]:
        folder = ROOT / "src" / package.replace(".", "/")
        listed |= {f"{package}.{path.stem}" for path in folder.glob("*.py")}
    missing = {where.rpartition(".")[0] for _, where in public_names() if "." in where} - listed
    assert missing == set(), "add these modules to a page in docs/api"
    for package in ("core", "fleet", "tasks", "parts", "methods", "runs", "engines", "analysis"):
        found = (ROOT / "src/gossamer" / package).rglob("*.py")
        modules = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in found}
        public = {name.removesuffix(".__init__") for name in modules} - {"gossamer.parts"}
        assert public - listed == set(), f"add these modules to a page in docs/api, {package}"


def test_the_version_to_cite_is_that_of_the_package() -> None:
    assert f"\nversion: {gossamer.__version__}\n" in (ROOT / "CITATION.cff").read_text()
