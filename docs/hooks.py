"""What ``mkdocs build`` does on top of MkDocs: pages from files outside ``docs``, and notebooks as pages.

The pages link to files of the repository, so that links work where the repository is browsed. On the site these links
lead to pages. The README, the guide to contributing and the changelog are pages of the site. All examples are one page.
A notebook is a page with its stored outputs. No script or font is loaded from another server.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EXAMPLES = "examples.md"
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
ALL_MODULES = re.compile(r"^::: (\S+)\.\*$", re.M)
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files, and take notebooks as pages."""
    for name, page in PAGES.items():
        text = with_site_links((ROOT / name).read_text(), name, page)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, EXAMPLES, content=examples()))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=notebook(Path(str(file.abs_src_path)))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files of the repository lead to pages of the site."""
    uri = page.file.src_uri
    markdown = ALL_MODULES.sub(lambda found: "\n\n".join(f"::: {name}" for name in modules(found[1])), markdown)
    return markdown if uri in PAGES.values() else with_site_links(markdown, f"docs/{uri}", uri)


def modules(package: str) -> list[str]:
    """Return the modules of a package, for a line ``::: package.*`` of the API reference."""
    folder = ROOT / "src" / package.replace(".", "/")
    return [f"{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


def with_site_links(text: str, source: str, page: str) -> str:
    """Replace links of a file to other files of the repository.

    Args:
        text: the Markdown.
        source: the path of the file in the repository.
        page: the path of its page on the site.
    """

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/") and not path.endswith(".ipynb"):
            path = path.removeprefix("docs/")
        elif (site := site_page(path)) is not None:
            path = site
        elif (ROOT / path).exists():
            return label if label.strip("`") == path else f"{label} (`{path}`)"
        else:
            return match[0]
        return f"[{label}]({posixpath.relpath(path, posixpath.dirname(page) or '.')}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def site_page(path: str) -> str | None:
    """Return the page of the site that shows a file of the repository, if there is one."""
    if path in PAGES:
        return PAGES[path]
    if path == "examples":
        return EXAMPLES
    if path.startswith("examples/"):
        return f"{EXAMPLES}#{slug(path.removeprefix('examples/'))}"
    return path.removeprefix("docs/").removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else None


def slug(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def examples() -> str:
    """All files in ``examples``, whole, with their names as headings."""
    folder = ROOT / "examples"
    found = sorted(path for path in folder.rglob("*") if path.suffix in LANGUAGES)
    sections = [
        f"## {path.relative_to(folder).as_posix()}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text().rstrip()}\n```\n"
        for path in found
    ]
    return "# Examples\n\nThe files of the folder `examples`, whole.\n\n" + "\n".join(sections)


def notebook(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code, and the text that the code printed."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    printed = "".join(text for output in cell["outputs"] for text in _output(output)).rstrip()
    return [f"```python\n{source}\n```", *([f"```text\n{printed}\n```"] if printed else [])]


def _output(output: dict[str, Any]) -> list[str]:
    return list(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])
