"""A complete Flower network on one machine: a SuperLink and its nodes as processes, with TLS over loopback.

    flower/NAME/    Flower's own files, one folder per process: nodes must not share their copies of the app
    logs/NAME.log   output of each process

Certificates, node keys and the secret of the server's launcher are in a temporary folder of this user, and are removed
with the network. A new network has new ones.

    superlink    forwards messages
    server       starts the server app when there is a run
    node-I       a SuperNode and the process of its client app; one per node
    run-ID       copies the output of the server app, which Flower shows nowhere else

Every process leads a process group, and its children stay in that group, so a killed node dies completely. No process
outlives the network or the thread that entered it. Groups get SIGTERM, then SIGKILL. If this process is killed, Linux
kills its children, and Flower's watchdogs end their descendants.

The SuperLink keeps its state in memory. A state on disk would list nodes that died with it as online, and Flower
refuses a node that it considers online.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient

from gossamer.core import files
from gossamer.core.errors import RunError
from gossamer.core.scratch import Scratch
from gossamer.engines.flower import credentials, supernode

Config = Mapping[str, str | int | float | bool]

CONNECTION = "gossamer"
"""Name of the network for the ``flwr`` command."""

HOST = "127.0.0.1"

SECRET = "superexec.secret"
"""The file of the secret that the SuperLink and the server's launcher share."""

PATIENCE = 60.0
"""Seconds within which a process must start, and a command must answer."""

MISSED = 75.0
"""Seconds after which Flower has noticed that a node is gone; it takes up to 60."""

POLL = 0.2

GRACE = 5.0
"""Seconds that a process has to end before it is killed."""

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs first in every process and then becomes its program: PR_SET_PDEATHSIG ends the process with its parent.
LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RunState:
    """State of a run, and Flower's text about it."""

    status: Literal["running", "finished", "failed"]
    reason: str


class LocalNetwork:
    """A SuperLink and its nodes, for a ``with`` statement; ``node_config(i)`` configures node ``i``."""

    def __init__(self, folder: Path, nodes: int, node_config: Callable[[int], Config]) -> None:
        self.folder, self.nodes, self.node_config = folder.resolve(), nodes, node_config
        self._credentials: Scratch | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleaning = ExitStack()

    def __enter__(self) -> "LocalNetwork":
        """Start all processes, and wait until all nodes are online."""
        with ExitStack() as stack:
            stack.enter_context(leaving())
            stack.callback(self._forget_credentials)
            stack.callback(self._stop_all)
            self._prepare()
            self._start_superlink()
            # Directly: a ``flwr`` command takes a second of CPU time to start.
            trust = self.credential("ca.crt").read_bytes()
            connected = ControlHttpClient.from_server_address(self.address, False, trust, [])
            self._control = stack.enter_context(closing(connected))
            self._ids = [self._register(node) for node in range(self.nodes)]
            for node in range(self.nodes):
                self._spawn_node(node)
            self._await_online(range(self.nodes))
            self._cleaning = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes; a second call does nothing."""
        self._cleaning.close()

    @property
    def address(self) -> str:
        """Address of the SuperLink."""
        return f"{HOST}:{self._port}"

    def credential(self, name: str) -> Path:
        """Return the path of a certificate or a key."""
        assert self._credentials is not None  # only a started network has some
        return self._credentials.path / name

    def run(self, app: Path, config: Config) -> str:
        """Start a Flower app and return the run ID; ``config`` replaces values of its ``pyproject.toml``."""
        run = str(self._flwr("run", str(app), CONNECTION, "-c", _spelled(config))["run-id"])
        self._follow(run)
        return run

    def state(self, run: str) -> RunState:
        """Return the state of a run; raise ``RunError`` if the network failed."""
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
        """Stop a run, as ``flwr stop`` does; the network keeps running."""
        with _asking():
            self._control.StopRun(StopRunRequest(run_id=int(run)))

    def kill_node(self, node: int) -> None:
        """Kill a node and its descendants, as a power cut would."""
        kill(self._processes.pop(_node(node)))

    def start_node(self, node: int) -> None:
        """Start a killed node again, as soon as Flower considers the old one offline (within a minute)."""
        self._await(lambda: node not in self._online(), f"Flower to miss node {node}", MISSED, ["superlink"])
        self._spawn_node(node)
        self._await_online([node])

    def kill_server(self) -> None:
        """Kill the server app, as a power cut would; the next run can start at once."""
        kill(self._processes.pop("server"))
        self._spawn_server()

    def logs(self) -> list[Path]:
        """Return the log files, one per process."""
        return sorted((self.folder / "logs").iterdir())

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of every log, for an error message."""
        return "\n".join(_tail(log, lines) for log in self.logs())

    def _prepare(self) -> None:
        """Write the files that the processes need, and all credentials in a temporary folder."""
        with files.on_failure(f"no network was started in {self.folder}"):
            for name in ("logs", "flower/user"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._credentials = Scratch("network")
            credentials.authority(self.credential(""), [])
            credentials.secret(self.credential(SECRET))
            for node in range(self.nodes):
                credentials.node_key(self.credential(_node(node)))
            credentials.roster(self.credential(""), self.nodes)
            self._port, *self._node_ports = _free_ports(1 + self.nodes)
            where = {"address": self.address, "root-certificates": str(self.credential("ca.crt"))}
            lines = [f"[superlink.{CONNECTION}]", *(f"{key} = {_toml(value)}" for key, value in where.items()), ""]
            files.write(self.folder / "flower/user/config.toml", "\n".join(lines).encode())

    def _forget_credentials(self) -> None:
        if self._credentials is not None:
            self._credentials.close()

    def _start_superlink(self) -> None:
        authority, certificate, key = (str(self.credential(n)) for n in ("ca.crt", "server.pem", "server.key"))
        tls = ("--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        where = ("--host", HOST, "--port", str(self._port))
        # By default a SuperLink starts the server app's launcher in another process group, which we could not end.
        how = ("--isolation", "process", "--enable-supernode-auth", "--disable-runtime-dependency-installation")
        # Without a secret, any process that reaches the SuperLink could take over the server app.
        who = ("--superexec-auth-secret-file", str(self.credential(SECRET)))
        self._spawn("superlink", "superlink", _command("flower-superlink"), *tls, *where, *how, *who)
        self._await(self._responds, "the SuperLink to answer", PATIENCE, ["superlink"])
        self._spawn_server()

    def _spawn_server(self) -> None:
        trust = ("--root-certificates", str(self.credential("ca.crt")))
        who = ("--superexec-auth-secret-file", str(self.credential(SECRET)))
        where = ("--runtime-api-address", self.address)
        self._spawn("server", "server", _command("flower-superexec"), *where, *trust, *who)

    def _spawn_node(self, node: int) -> None:
        where = ("--superlink", self.address, "--root-certificates", str(self.credential("ca.crt")))
        who = ("--auth-supernode-private-key", str(self.credential(_node(node))))
        # Paths, and no secrets.
        own = {"key": str(self.credential(_node(node))), "roster": str(self.credential(credentials.ROSTER))}
        config = {**self.node_config(node), **own}
        how = ("--port", str(self._node_ports[node]), "--node-config", _spelled(config))
        self._spawn(_node(node), _node(node), *supernode.command([*where, *who, *how]))

    def _spawn(self, name: str, home: str, *line: str) -> None:
        """Start a process, and register it before a signal can interrupt."""
        log = self.folder / f"logs/{name}.log"
        with uninterrupted():
            self._processes[name] = start(line, self._environment(home), log)

    def _follow(self, run: str) -> None:
        """Copy the output of the server app to a log until the run is over."""
        self._spawn(f"run-{run}", "user", _command("flwr"), "log", run, CONNECTION, "--stream")

    def _environment(self, home: str) -> dict[str, str]:
        """Return the environment of a process: its own Flower home, no telemetry, Flower's commands on the PATH."""
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
        """Run a ``flwr`` command and return its JSON output."""
        line, name = [_command("flwr"), *arguments, "--format", "json"], f"`flwr {arguments[0]}`"
        try:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
            done = subprocess.run(line, env=self._environment("user"), timeout=PATIENCE, **how)
        except subprocess.TimeoutExpired:
            raise RunError(f"{name} took longer than {PATIENCE:.0f} seconds\n{self.tail()}") from None
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(done.stdout)
            if answer["success"]:
                return answer
            raise RunError(f"{name} failed: {answer['error-message'].strip()}")
        raise RunError(f"{name} failed with exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")

    def _register(self, node: int) -> int:
        """Register a node, as ``flwr supernode register`` does, and return its Flower ID."""
        key = load_ssh_public_key(credentials.public_half(self.credential(_node(node))).read_bytes())
        data = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with _asking():
            return self._control.RegisterNode(RegisterNodeRequest(public_key=data)).node_id

    def _responds(self) -> bool:
        """Return whether the SuperLink listens, with our certificate."""
        trust = ssl.create_default_context(cafile=self.credential("ca.crt"))
        try:
            with socket.create_connection((HOST, self._port), timeout=1) as plain:
                trust.wrap_socket(plain, server_hostname=HOST).close()
        except OSError:
            return False
        return True

    def _online(self) -> set[int]:
        """Return the nodes that Flower considers online."""
        with _asking():
            known = self._control.ListNodes(ListNodesRequest()).nodes_info
        online = {info.node_id for info in known if info.status == "online"}
        return {node for node, name in enumerate(self._ids) if name in online}

    def _await_online(self, nodes: Iterable[int]) -> None:
        wanted = set(nodes)
        names = ["superlink", "server", *map(_node, sorted(wanted))]
        self._await(lambda: wanted <= self._online(), "the nodes to be online", PATIENCE, names)

    def _await(self, ready: Callable[[], bool], what: str, seconds: float, needed: Iterable[str]) -> None:
        """Wait for a condition; raise on timeout, or if a needed process has ended."""
        until = time.monotonic() + seconds
        while not ready():
            self._check(needed)
            if time.monotonic() > until:
                raise RunError(f"waited {seconds:.0f} seconds for {what} without success\n{self.tail()}")
            time.sleep(POLL)

    def _check(self, needed: Iterable[str]) -> None:
        for name in needed:
            code = self._processes[name].poll()
            if code is not None:
                last = _tail(self.folder / f"logs/{name}.log", 15)
                raise RunError(f"the process {name} ended with exit code {code}; its last output:\n{last}")

    def _stop_all(self) -> None:
        """Stop the SuperLink last, because the other processes disconnect from it."""
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
    """Return the path of a command, preferably next to this Python, so that it belongs to the same Flower."""
    here = Path(sys.executable).parent
    found = shutil.which(name, path=str(here)) or shutil.which(name)
    if found is None:
        raise RunError(f"{name} is neither in {here} nor on the PATH: pip install 'gossamer[flower]'")
    return found


def _free_ports(count: int) -> list[int]:
    """Return free ports; all stay bound until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _node(node: int) -> str:
    return f"node-{node}"


def _spelled(config: Config) -> str:
    """Format a configuration for Flower's commands: ``key=value`` separated by spaces, with values in TOML."""
    return " ".join(f"{key}={_toml(value)}" for key, value in config.items())


def _toml(value: str | int | float | bool) -> str:
    """Format a value in TOML; Flower's parser ignores escaped quotes, so they become character codes."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'


def _tail(log: Path, lines: int) -> str:
    with log.open(errors="replace") as file:
        return f"{log}:\n{COLOUR.sub('', ''.join(deque(file, lines)))}"


def start(line: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that leads its own group; append its output to a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCH, *line],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to processes, and wait some seconds for their end."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        _send(process, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(POLL)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, and wait for their end."""
    _send(process, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + GRACE
    while _lives(process.pid) and time.monotonic() < until:
        time.sleep(POLL / 10)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _lives(group: int) -> bool:
    """Return whether a process group has a member that is not a zombie."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that would end this process until the block is done."""
    pending: list[int] = []
    with _handling(pending.append, ENDINGS):
        yield
    for number in pending:
        signal.raise_signal(number)


def leaving() -> AbstractContextManager[None]:
    """Turn signals that would end this process at once into ``SystemExit``, so that it can clean up."""

    def leave(number: int) -> None:
        raise SystemExit(128 + number)

    return _handling(leave, [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL])


@contextmanager
def _handling(handle: Callable[[int], object], numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals inside the block. Only the main thread can; in other threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
