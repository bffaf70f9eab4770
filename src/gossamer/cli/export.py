"""The command ``export``."""

from pathlib import Path

from gossamer.cli.build import server_task, whole_task
from gossamer.cli.build_method import one_method
from gossamer.cli.common import TRUST, Parser, open_run
from gossamer.cli.flags import value
from gossamer.cli.reopen import rebuild
from gossamer.core.errors import ConfigError, Mistakes
from gossamer.engines.export import DEFAULT, FILES, FORMATS, Exported, Format, check_out, stand
from gossamer.engines.export import export as write
from gossamer.engines.simulation import Simulation
from gossamer.runs.inside import refuse_links
from gossamer.runs.report import text
from gossamer.runs.report.scores import primary
from gossamer.runs.report.summary import summarise

CONTENTS = (
    "every tensor by name",
    "the same tensors in sparse form",
    "the network as a torch.export program; batch size: {batch}",
    "the same program with tensors in sparse form",
    "the network as an ONNX model; batch size: {batch}",
    "the same model with tensors in sparse form",
    "the adapter alone, for PEFT",
    "the configuration of the adapter",
)
MEANING = dict(zip(FILES, CONTENTS, strict=True))


def export(words: list[str]) -> int:
    """``gossamer export RUN``."""
    parser = Parser(prog="gossamer export", description="Export the model of a run as files that need no Gossamer.")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--client", metavar="N", help="export the model of this client (default: the global model)")
    usual = ",".join(DEFAULT)
    formats_help = f"formats, separated by commas: {', '.join(FORMATS)} (default: {usual})"
    parser.add_argument("--format", metavar="LIST", default=usual, help=formats_help)
    parser.add_argument("--method", metavar="FILE.py:NAME", help="the method of a run from Python")
    parser.add_argument("--task", metavar="FILE.py:NAME", help="the task of a run from Python")
    parser.add_argument("--out", metavar="DIR", help="folder to write to (default: export/ in the folder of the run)")
    parser.add_argument("--force", action="store_true", help="replace files in that folder that export has not written")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    arguments = parser.parse_args(words)
    path, mistakes = Path(arguments.run), Mistakes()
    about = mistakes.attempt(open_run, path)
    client = mistakes.attempt(value, "--client", arguments.client, int)
    formats = mistakes.attempt(value, "--format", arguments.format, tuple[Format, ...])
    method = mistakes.attempt(one_method, arguments.method) if arguments.method else None
    task = mistakes.attempt(whole_task, arguments.task) if arguments.task else None
    out = Path(arguments.out) if arguments.out else path / ("export" if client is None else f"export/client-{client}")
    if not arguments.out:
        mistakes.attempt(refuse_links, path, ("export", f"export/client-{client}"))
    mistakes.attempt(check_out, out, formats or (), arguments.force)
    mistakes.settle()
    assert about is not None  # or there were mistakes
    assert formats is not None
    if client is not None:
        clients = about["task"]["clients"]
        if not 0 <= client < clients:
            raise ConfigError(f"--client {client}: the run has clients 0 to {clients - 1}")
    read = server_task if "deployment" in about else whole_task
    run = stand(path, *rebuild(path, about, method, task, read, trusted=arguments.trust))
    if client is not None and "deployment" in about and run.method.home(client).owner is None:
        raise ConfigError("--client: the run was deployed, and the models of its clients are on their machines")
    if client is None and not (run.method.shared or run.method.pooled):
        raise ConfigError(f"{path} has no global model: choose a client with --client N")
    print(_shown(path, client, run, write(run, out, client, formats, arguments.force)))
    return 0


def _shown(path: Path, client: int | None, run: Simulation, exported: Exported) -> str:
    summary, score = summarise(run.about, run.metrics), primary(run.about)
    whose = "of the global model" if run.method.shared or run.method.pooled else "as the mean over clients"
    late = summary["evaluated_round"]
    when = f" after round {late}" if late and late != summary["rounds"] else ""
    recorded = f"the run recorded {score.write(summary[score.name])} {whose}{when}"
    rows = [
        ("model", f"{_whose(client, run, exported)}, after {text.count(exported.round, 'round')} of {path}"),
        ("zeros", text.percent(exported.zeros)),
        (score.words, f"{score.write(exported.score)} on all test samples; {recorded}"),
    ]
    if client is not None:
        mean = f"the run recorded {score.write(summary[score.over_clients])} as the mean over clients"
        own = f"{score.write(exported.own_score)} on the client's test samples"
        rows.append((f"own {score.words}", f"{own}; {mean}"))
    if exported.difference is not None:
        rows.append(("difference", f"{exported.difference:.1e} at most between scores of programs and network"))
    if exported.problem:
        rows.append(("no program", f"torch cannot export this network: {exported.problem}"))
    meaning = {name: about.format(batch=exported.batch) for name, about in MEANING.items()}
    files = [(str(file), text.size(size), meaning[file.name]) for file, size in exported.files.items()]
    return f"{text.pairs(rows)}\n\n{text.table(('file', 'size', 'contents'), files)}"


def _whose(client: int | None, run: Simulation, exported: Exported) -> str:
    if client is None:
        return "the global model"
    if exported.shared:
        return f"the global model: client {client} has no other with this method"
    if not run.method.shared and not run.clients.get(client):
        return f"the initial model: client {client} took part in no round"
    return f"the personalized model of client {client}"
