"""``gossamer show RUN --paper-costs``: the costs of a run next to those that the paper of its method counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.analysis.theory.costs import count_of, paper_costs
from gossamer.cli.rebuild import rebuild
from gossamer.cli.request import Request
from gossamer.core.errors import ConfigError
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.text import BLANK, number, size, table


def counted(path: Path, about: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> str:
    """Return a table of bytes and operations, and the paper's rules."""
    summary = summarise(about, metrics)
    name = summary["method"]
    count_of(name)  # refuses a method before the data is loaded
    request = Request.recorded(about)
    if request and (own := request.files()):
        raise ConfigError(f"{path} is built from {' and '.join(own.values())}, and show executes no file of a run")
    method, task = rebuild(path, about)
    if every := about["options"].get("validate"):
        task = task.with_split(task.split.hold_out(every)[0])  # nobody trains on held-out samples
    found = paper_costs(name, method, task, metrics, about["options"]["seed"])
    sent = summary["bytes_up"] + summary["bytes_down"]
    rows = [
        ["bytes, both directions", size(sent), BLANK if found.bytes is None else size(found.bytes)],
        ["operations", number(summary["flops"]), BLANK if found.flops is None else number(found.flops)],
    ]
    held = f"operations with held weights: {number(summary['useful_flops'])}"
    return "\n\n".join((table(["costs", "this run", "paper"], rows), held, f"{found.paper}: {found.rules}"))
