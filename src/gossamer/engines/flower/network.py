"""A real network on one machine: a SuperLink and its nodes, each a process of its own, that talk TLS over loopback.

    credentials/    certificates and node keys; a network that is started here again has the same ones
    flower/NAME/    Flower's own files, a folder a process: nodes that share one trip over each other's copy of the app
    logs/NAME.log   what each process says

    superlink    passes messages on
    server       starts the server's app when there is a run
    node-I       runs the client's app; one a node
    run-ID       copies what the server's app says, which Flower shows nowhere else

Every process leads a group, and what it starts stays in that group: a node that is killed dies whole. No process
outlives the network, nor the thread that entered it. Groups are asked to end, then killed; should this process be
killed itself, Linux kills its children, and what these had started ends by Flower's own watchdogs.

The SuperLink keeps its books in memory. On the disk they would say of nodes that died with it that they are online,
and Flower refuses a node that it takes for online.
"""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient

from gossamer.core import files
from gossamer.core.errors import RunError
from gossamer.engines.flower import credentials
from gossamer.engines.flower.processes import end, kill, leaving, start, uninterrupted

Config = Mapping[str, str | int | float | bool]

CONNECTION = "gossamer"
"""What the ``flwr`` command calls the network."""

HOST = "127.0.0.1"

PATIENCE = 60.0
"""Seconds that a process may take to start, and a command to answer."""

MISSED = 75.0
"""Seconds after which Flower has surely noticed that a node is gone; it takes up to 60."""

POLL = 0.2

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RunState:
    """How a run is doing, and Flower's own words for it."""

    status: Literal["running", "finished", "failed"]
    reason: str


class LocalNetwork:
    """A SuperLink and so many nodes, for a ``with`` statement; ``node_config(i)`` is what node ``i`` is told."""

    def __init__(self, folder: Path, nodes: int, node_config: Callable[[int], Config]) -> None:
        self.folder = folder.resolve()
        self.nodes = nodes
        self.node_config = node_config
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleaning = ExitStack()

    def __enter__(self) -> "LocalNetwork":
        """Start everything, and wait until all nodes are online."""
        with ExitStack() as stack:
            stack.enter_context(leaving())
            stack.callback(self._stop_all)
            self._prepare()
            self._start_superlink()
            self._control = stack.enter_context(closing(self._connect()))
            self._ids = [self._register(node) for node in range(self.nodes)]
            for node in range(self.nodes):
                self._spawn_node(node)
            self._await_online(range(self.nodes))
            self._cleaning = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop every process; a second time does nothing."""
        self._cleaning.close()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self._port}"

    def credential(self, name: str) -> Path:
        """The file of a certificate or a key."""
        return self.folder / "credentials" / name

    def run(self, app: Path, config: Config) -> str:
        """Start a Flower app, and return the run's number; ``config`` replaces values of its ``pyproject.toml``."""
        run = str(self._flwr("run", str(app), CONNECTION, "-c", _spelled(config))["run-id"])
        self._follow(run)
        return run

    def state(self, run: str) -> RunState:
        """How a run is doing; a ``RunError`` if it is the network that failed."""
        self._check(["superlink", "server"])
        if self._processes[f"run-{run}"].poll() is None:
            return RunState("running", "")
        with _asking():
            status = self._control.ListRuns(ListRunsRequest(run_id=int(run))).run_dict[int(run)].status
        if status.status != "finished":
            self._follow(run)
            return RunState("running", status.details)
        done = status.sub_status == "completed"
        return RunState("finished" if done else "failed", status.details or status.sub_status)

    def stop_run(self, run: str) -> None:
        """Do as ``flwr stop`` does; the network stays."""
        with _asking():
            self._control.StopRun(StopRunRequest(run_id=int(run)))

    def kill_node(self, node: int) -> None:
        """End a node and everything that it started, as a power cut would."""
        kill(self._processes.pop(_node(node)))

    def start_node(self, node: int) -> None:
        """Start a node again after it was killed. Flower lets it in once it misses the old one, within a minute."""
        self._await(lambda: node not in self._online(), f"Flower to miss node {node}", MISSED, ["superlink"])
        self._spawn_node(node)
        self._await_online([node])

    def kill_server(self) -> None:
        """End the server's app, as a power cut would; the next run can start at once."""
        kill(self._processes.pop("server"))
        self._spawn_server()

    def logs(self) -> list[Path]:
        """What the processes say, a file a process."""
        return sorted((self.folder / "logs").iterdir())

    def tail(self, lines: int = 15) -> str:
        """The last lines of every log, for an error message."""
        return "\n".join(_tail(log, lines) for log in self.logs())

    def _prepare(self) -> None:
        """Everything on the disk that the processes need."""
        with files.told(f"no network was started in {self.folder}"):
            for name in ("logs", "flower/user"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            if not self.credential("").exists():
                self._make_credentials()
            self._port, *self._node_ports = _free_ports(1 + self.nodes)
            where = {"address": self.address, "root-certificates": str(self.credential("ca.crt"))}
            lines = [f"[superlink.{CONNECTION}]", *(f"{key} = {_toml(value)}" for key, value in where.items()), ""]
            files.write(self.folder / "flower/user/config.toml", "\n".join(lines).encode())

    def _make_credentials(self) -> None:
        """All in one go, so that a part of them is never taken for the whole."""
        aside = self.folder / ".credentials"
        shutil.rmtree(aside, ignore_errors=True)
        credentials.authority(aside, [])
        for node in range(self.nodes):
            credentials.node_key(aside / _node(node))
        files.rename(aside, self.credential(""))

    def _start_superlink(self) -> None:
        authority, certificate, key = (str(self.credential(n)) for n in ("ca.crt", "server.pem", "server.key"))
        tls = ("--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        where = ("--host", HOST, "--port", str(self._port))
        # Left to itself, a SuperLink starts what starts the server's app in another process group, out of reach.
        how = ("--isolation", "process", "--enable-supernode-auth", "--disable-runtime-dependency-installation")
        self._spawn("superlink", "superlink", "flower-superlink", *tls, *where, *how)
        self._await(self._answers, "the SuperLink to answer", PATIENCE, ["superlink"])
        self._spawn_server()

    def _spawn_server(self) -> None:
        trust = ("--root-certificates", str(self.credential("ca.crt")))
        self._spawn("server", "server", "flower-superexec", "--runtime-api-address", self.address, *trust)

    def _spawn_node(self, node: int) -> None:
        where = ("--superlink", self.address, "--root-certificates", str(self.credential("ca.crt")))
        who = ("--auth-supernode-private-key", str(self.credential(_node(node))))
        how = ("--port", str(self._node_ports[node]), "--node-config", _spelled(self.node_config(node)))
        self._spawn(_node(node), _node(node), "flower-supernode", *where, *who, *how)

    def _spawn(self, name: str, home: str, command: str, *arguments: str) -> None:
        """Start a process, and note it in the books before anything can interrupt that."""
        line, log = [_command(command), *arguments], self.folder / f"logs/{name}.log"
        with uninterrupted():
            self._processes[name] = start(line, self._environment(home), log)

    def _follow(self, run: str) -> None:
        """Copy what the server's app says until the run is over; then, all that it said is in the log."""
        self._spawn(f"run-{run}", "user", "flwr", "log", run, CONNECTION, "--stream")

    def _environment(self, home: str) -> dict[str, str]:
        """What a process finds around it: its own Flower home, no calls to the internet, Flower's other commands."""
        ours = {
            "FLWR_HOME": str(self.folder / "flower" / home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FORCE_COLOR": "",
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        return {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", **os.environ, **ours}

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """What a ``flwr`` command answers."""
        line, name = [_command("flwr"), *arguments, "--format", "json"], f"`flwr {arguments[0]}`"
        try:
            done = subprocess.run(
                line,
                env=self._environment("user"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"{name} took longer than {PATIENCE:.0f} seconds\n{self.tail()}") from None
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(done.stdout)
            if answer["success"]:
                return answer
            raise RunError(f"{name} failed: {answer['error-message'].strip()}")
        raise RunError(f"{name} failed with exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")

    def _register(self, node: int) -> int:
        """Do as ``flwr supernode register`` does; what Flower calls the node from then on."""
        key = load_ssh_public_key(credentials.public_half(self.credential(_node(node))).read_bytes())
        data = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with _asking():
            return self._control.RegisterNode(RegisterNodeRequest(public_key=data)).node_id

    def _connect(self) -> ControlHttpClient:
        """An open line to the SuperLink: a ``flwr`` command keeps a core busy for a second before it asks anything."""
        trust = self.credential("ca.crt").read_bytes()
        return ControlHttpClient.from_server_address(self.address, False, trust, [])

    def _answers(self) -> bool:
        """Whether the SuperLink listens, and proves that it is ours."""
        trust = ssl.create_default_context(cafile=self.credential("ca.crt"))
        try:
            with socket.create_connection((HOST, self._port), timeout=1) as plain:
                trust.wrap_socket(plain, server_hostname=HOST).close()
        except OSError:
            return False
        return True

    def _online(self) -> set[int]:
        """The nodes that Flower takes for online."""
        with _asking():
            known = self._control.ListNodes(ListNodesRequest()).nodes_info
        online = {info.node_id for info in known if info.status == "online"}
        return {node for node, name in enumerate(self._ids) if name in online}

    def _await_online(self, nodes: Iterable[int]) -> None:
        wanted = set(nodes)
        names = ["superlink", "server", *map(_node, sorted(wanted))]
        self._await(lambda: wanted <= self._online(), "the nodes to be online", PATIENCE, names)

    def _await(self, ready: Callable[[], bool], what: str, seconds: float, needed: Iterable[str]) -> None:
        """Wait for something, but not for ever, and not once a process that it needs has ended."""
        until = time.monotonic() + seconds
        while not ready():
            self._check(needed)
            if time.monotonic() > until:
                raise RunError(f"waited {seconds:.0f} seconds for {what}, in vain\n{self.tail()}")
            time.sleep(POLL)

    def _check(self, needed: Iterable[str]) -> None:
        for name in needed:
            code = self._processes[name].poll()
            if code is not None:
                last = _tail(self.folder / f"logs/{name}.log", 15)
                raise RunError(f"the process {name} ended with exit code {code}; the last that it said:\n{last}")

    def _stop_all(self) -> None:
        """Stop the SuperLink last: the others take their leave of it."""
        try:
            end([process for name, process in self._processes.items() if name != "superlink"])
            end(self._processes.values())
        finally:
            for process in self._processes.values():
                kill(process)
            self._processes.clear()


@contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise RunError(f"the SuperLink refused: {error.response.text}") from error
    except httpx.HTTPError as error:
        raise RunError(f"the SuperLink did not answer: {error}") from error


def _command(name: str) -> str:
    """Where a command is: beside this Python if possible, so that it is the same Flower."""
    here = Path(sys.executable).parent
    found = shutil.which(name, path=str(here)) or shutil.which(name)
    if found is None:
        raise RunError(f"{name} is neither in {here} nor on the PATH: pip install 'gossamer[flower]'")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _node(node: int) -> str:
    return f"node-{node}"


def _spelled(config: Config) -> str:
    """A configuration as Flower's commands want it: ``key=value``, the values in TOML, with spaces between."""
    return " ".join(f"{key}={_toml(value)}" for key, value in config.items())


def _toml(value: str | int | float | bool) -> str:
    """A value in TOML; Flower looks for a string's end without minding escapes, so a quote in it becomes a number."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'


def _tail(log: Path, lines: int) -> str:
    with log.open(errors="replace") as file:
        return f"{log}:\n{COLOUR.sub('', ''.join(deque(file, lines)))}"
