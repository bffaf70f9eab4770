"""Certificates and keys, and a real network of processes made with them."""

import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from json import loads
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from gossamer.core.errors import ConfigError, RunError
from gossamer.engines.flower import credentials, network, resident
from gossamer.engines.flower.network import LocalNetwork, RunState

APP = Path(__file__).parent / "flower_network_app"
ODD = 'a "quoted" word, a \\ and = signs'


def config(node: int) -> dict[str, str | int | float | bool]:
    return {"client": node, "name": ODD, "rate": 1e-05, "fast": node == 0, "empty": ""}


# Credentials


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority") / "new"
    credentials.authority(folder, ["fl.example.org", "10.0.0.7", "::1", "localhost"])
    return folder


def test_private_files_are_for_their_owner_alone(authority: Path, tmp_path: Path) -> None:
    credentials.node_key(tmp_path / "node")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for folder in (authority, tmp_path) for path in folder.iterdir()}
    private = {path.name for path, mode in modes.items() if mode == 0o600}
    assert private == {"server.key", "node"}
    assert {path.name for path in modes} - private == {"ca.crt", "server.pem", "node.pub"}


def test_a_file_is_private_before_it_has_any_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_first, make = {}, os.open

    def watched(path: Path, flags: int, mode: int) -> int:
        handle = make(path, flags, mode)
        at_first[path.name] = stat.S_IMODE(os.fstat(handle).st_mode), os.fstat(handle).st_size
        return handle

    monkeypatch.setattr(os, "open", watched)
    credentials.node_key(tmp_path / "node")
    assert at_first == {"node": (0o600, 0), "node.pub": (0o644, 0)}


def test_the_certificate_has_every_name_once_and_a_limited_time(authority: Path) -> None:
    certificate = x509.load_pem_x509_certificate((authority / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fl.example.org"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "10.0.0.7", "::1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == credentials.DAYS + 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "fl.example.org", "10.0.0.7", "::1"])
def test_the_strictest_client_trusts_it_under_each_name(authority: Path, host: str) -> None:
    assert handshake(authority, authority / "ca.crt", host) == "TLSv1.3"


def test_other_names_and_other_authorities_are_not_trusted(authority: Path, tmp_path: Path) -> None:
    credentials.authority(tmp_path, [])
    with pytest.raises(ssl.SSLCertVerificationError, match="evil"):
        handshake(authority, authority / "ca.crt", "evil.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority, tmp_path / "ca.crt", "localhost")


def handshake(server: Path, trusted: Path, host: str) -> str | None:
    """The protocol that both ends agree on."""
    here, there = socket.socketpair()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server / "server.pem", server / "server.key")
    trusting = ssl.create_default_context(cafile=trusted)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve() -> None:
        with there, suppress(OSError):
            serving.wrap_socket(there, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with here, trusting.wrap_socket(here, server_hostname=host) as secure:
            return secure.version()
    finally:
        thread.join()


def test_a_node_key_is_what_ssh_keygen_makes(tmp_path: Path) -> None:
    credentials.node_key(tmp_path / "a.node")
    private = load_ssh_private_key((tmp_path / "a.node").read_bytes(), None)
    public = (tmp_path / "a.node.pub").read_bytes()
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    assert load_ssh_public_key(public) == private.public_key()


def test_nothing_is_written_over(authority: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in authority.iterdir()}
    with pytest.raises(ConfigError, match=r"server\.key.* exists: choose another folder"):
        credentials.authority(authority, [])
    (tmp_path / "node.pub").write_text("mine")
    with pytest.raises(ConfigError, match=r"node\.pub exists"):
        credentials.node_key(tmp_path / "node")
    assert {path: path.read_bytes() for path in authority.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["node.pub"]


def test_what_cannot_be_written_whole_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="the disk is full: no credentials were written"):
        credentials.authority(tmp_path, [])
    assert not list(tmp_path.iterdir())


def test_all_wrong_hosts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        credentials.authority(tmp_path, ["good.example.org", "https://a", "b:8000", "", "c d", "*.e"])
    assert [mistake.split("got ")[1] for mistake in caught.value.mistakes] == [
        "'https://a'",
        "'b:8000'",
        "''",
        "'c d'",
        "'*.e'",
    ]


# The network


@pytest.mark.network
def test_a_network_does_its_work_refuses_strangers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "the answers"
    with LocalNetwork(tmp_path / "a network", 2, config) as running:
        good, bad = running.run(APP, {"out": str(out)}), running.run(APP, {})
        the_unknown_are_refused(running, tmp_path)
        assert end(running, bad) == RunState("failed", "ServerApp failed with exception: nowhere to write to")
        assert end(running, good) == RunState("finished", "completed")
        with pytest.raises(RunError, match=r"the SuperLink refused: .*already finished"):
            running.stop_run(good)
        left = children(os.getpid())
        ports = [int(line[line.index("--port") + 1]) for line in left.values() if "--port" in line]
        assert len(left) >= 6, "a superlink, a server and two nodes, each with what starts its apps"
    assert [line for pid, line in left.items() if alive(pid)] == []
    assert len(ports) == 3
    assert not any(map(listened_on, ports))
    answers = sorted(loads(out.read_text()), key=lambda answer: answer["client"])
    assert [answer.pop("key") for answer in answers] == [str(running.credential(f"node-{at}")) for at in (0, 1)]
    assert [answer.pop("roster") for answer in answers] == [str(running.credential("roster.pub"))] * 2
    assert answers == [config(0), config(1)]
    assert "nowhere to write to" in running.tail()


def the_unknown_are_refused(running: LocalNetwork, folder: Path) -> None:
    """A key that was not registered, and a node that trusts another authority than the SuperLink's."""
    credentials.authority(folder, [])
    credentials.node_key(folder / "stranger")
    stranger = supernode(running, folder / "stranger", running.credential("ca.crt"))
    misled = supernode(running, running.credential("node-0"), folder / "ca.crt")
    assert "Failed to activate SuperNode" in stranger.communicate(timeout=40)[0]
    assert "certificate verify failed" in misled.communicate(timeout=40)[0]
    assert (stranger.returncode, misled.returncode) == (1, 1)


def listened_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def supernode(running: LocalNetwork, key: Path, trust: Path) -> subprocess.Popen[str]:
    where = ["--superlink", running.address, "--port", str(network._free_ports(1)[0])]
    who = ["--root-certificates", str(trust), "--auth-supernode-private-key", str(key), "--isolation", "process"]
    line, environment = [network._command("flower-supernode"), *where, *who], running._environment("stranger")
    return subprocess.Popen(line, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(running: LocalNetwork, run: str) -> RunState:
    until = time.monotonic() + 90
    while (state := running.state(run)).status == "running" and time.monotonic() < until:
        time.sleep(0.1)
    return state


@pytest.mark.network
def test_a_client_app_stays_for_a_run_and_not_for_the_next(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path / "network", 1, config) as running:
        assert counted(running, tmp_path, "one") == [["one", 1], ["one", 2]]
        assert counted(running, tmp_path, "two") == [["two", 1], ["two", 2]]
        (app,) = [pid for pid, line in children(os.getpid()).items() if resident.__name__ in line]
        os.kill(app, signal.SIGKILL)
        assert counted(running, tmp_path, "two") == [["two", 1], ["two", 2]]


COUNTED = """
import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()
questions = []


@server.main()
def ask(grid, context):
    (node,), found = grid.get_node_ids(), []
    for _ in range(2):
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY)], timeout=60)
        found.append(list(reply.content["counted"].values()))
    Path(context.run_config["out"]).write_text(json.dumps(found))


@client.query()
def answer(message, context):
    questions.append(message)
    counted = ConfigRecord({"word": "WORD", "questions": len(questions)})
    return Message(RecordDict({"counted": counted}), reply_to=message)
"""


def counted(running: LocalNetwork, folder: Path, word: str) -> list[list[str | int]]:
    """What an app answers to two questions: a word of its source, and the questions that its process has got."""
    app, out = folder / word, folder / f"{word}.json"
    app.mkdir(exist_ok=True)
    (app / "round_trip.py").write_text(COUNTED.replace("WORD", word))
    (app / "pyproject.toml").write_text((APP / "pyproject.toml").read_text())
    assert end(running, running.run(app, {"out": str(out)})).status == "finished", running.tail()
    found: list[list[str | int]] = loads(out.read_text())
    return found


@pytest.mark.network
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_ended_takes_its_network_along(tmp_path: Path, number: int) -> None:
    script = f"""
from pathlib import Path
from gossamer.engines.flower.network import LocalNetwork
with LocalNetwork(Path({str(tmp_path)!r}), 1, lambda node: {{}}):
    raise AssertionError("too late")
"""
    user = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 40
    while not (left := children(user.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    user.send_signal(number)
    user.wait()
    while any(map(alive, left)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left
    assert not any(map(alive, left))


def test_a_process_that_dies_at_its_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(network, "_free_ports", lambda count: [taken.getsockname()[1]] * count)
        with pytest.raises(RunError, match=r"superlink ended with exit code 1(.|\n)*address already in use"):
            LocalNetwork(tmp_path, 1, config).__enter__()
    assert not children(os.getpid()).keys() - before.keys()


def test_flower_that_is_not_there_is_missed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match=r"flower-superlink is neither in .* nor on the PATH: pip install"):
        LocalNetwork(tmp_path, 1, config).__enter__()


def test_private_keys_are_not_in_the_folder_of_a_network_and_go_with_it(tmp_path: Path) -> None:
    def prepared() -> dict[str, bytes]:
        made = LocalNetwork(tmp_path, 2, config)
        made._prepare()
        found = {path.name: path.read_bytes() for path in made.credential("").iterdir()}
        folder = made.credential("")
        made._forget_credentials()
        assert not folder.exists()
        return found

    before, after = prepared(), prepared()
    assert {"node-0", "node-1", "node-0.pub", "ca.crt", "server.key", "superexec.secret"} < set(before)
    assert before["node-0"] != after["node-0"]
    secrets = {content for name, content in after.items() if not name.endswith((".pub", ".crt", ".pem"))}
    assert not any(path.read_bytes() in secrets for path in tmp_path.rglob("*") if path.is_file())


def children(parent: int) -> dict[int, list[str]]:
    """The command lines of the processes that a process has started, and that these have."""
    direct = [pid for pid, (state, its_parent) in processes().items() if its_parent == parent and state != "Z"]
    below = {pid: line for child in direct for pid, line in children(child).items()}
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in direct} | below


def alive(pid: int) -> bool:
    return processes().get(pid, ("Z", 0))[0] != "Z"


def processes() -> dict[int, tuple[str, int]]:
    """State and parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            found[int(path.parent.name)] = state, int(parent)
    return found
