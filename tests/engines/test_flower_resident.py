"""A SuperNode whose client app stays: what it relies on in Flower, and how it handles tasks."""

import ast
import inspect
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal

from gossamer.cli import main
from gossamer.engines.flower import resident, supernode
from gossamer.engines.flower.resident import Claim, Resident, SuperNode, TaskClient
from helpers.paths import ROOT

FLAGS = ["--superlink", "far:8000", "--port", "9100", "--node-config", "partition-id=1"]


# What is relied on in Flower


def test_the_release_is_the_one_that_is_installed_with_gossamer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flwr=={supernode.FLOWER}" in project["optional-dependencies"]["flower"]
    assert supernode.known_release()


def test_flowers_main_loop_has_the_pauses_that_are_replaced() -> None:
    tree = ast.parse(inspect.getsource(start_client_internal))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time"]
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert {use.attr for use in uses} == {"sleep"}
    assert sorted(call for call in calls if call.startswith("time.")) == ["time.sleep(0.5)"] * 2 + ["time.sleep(3)"]


@pytest.mark.parametrize("module", [start_client_internal, http_grid])
def test_flower_pulls_messages_with_the_pause_that_is_replaced(module: ModuleType) -> None:
    assert inspect.signature(pull_objects).parameters["initial_backoff"].default == 1
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    assert "pull_objects" in {ast.unparse(call.func) for call in calls}
    assert "pull_objects" in vars(module)


def test_pauses_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    module: Any = ModuleType("a main loop")
    module.pull_objects = lambda names, *, initial_backoff: (names, initial_backoff)
    supernode.shorten_pauses(module, 0.7)
    for seconds in (3, 0.5, 0.001):
        module.time.sleep(seconds)
    assert slept == [0.7, supernode.LOCAL, 0.001]
    assert module.pull_objects(["a"]) == (["a"], supernode.LOCAL)


# The SuperNode


def test_the_supernode_imports_nothing_of_gossamer_and_no_torch() -> None:
    tree = ast.parse(Path(supernode.__file__).read_text())
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [name for name in names if "gossamer" in name or "torch" in name]


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ([], ["--runtime-api-address", "127.0.0.1:9094"]),
        (FLAGS, ["--runtime-api-address", "127.0.0.1:9100"]),
        (["--host=::1"], ["--runtime-api-address", "[::1]:9094"]),
        (["--ssl-ca-certfile", "a.crt"], ["--runtime-api-address", "127.0.0.1:9094", "--root-certificates", "a.crt"]),
    ],
)
def test_the_client_app_connects_to_its_supernode(flags: list[str], where: list[str]) -> None:
    line = supernode.resident_command(flags)
    assert line[:4] == [sys.executable, "-P", "-m", resident.__name__]
    assert line[4:] == [*where, "--parent-pid", str(os.getpid())]


def test_another_release_of_flower_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[Any] = []

    def replaced(*line: Any) -> None:
        became.extend(line)
        raise SystemExit

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(supernode, "version", lambda name: "1.42.0")
    monkeypatch.setattr(os, "execvp", replaced)
    monkeypatch.setattr(sys, "argv", supernode.command(FLAGS)[2:])
    with pytest.raises(SystemExit):
        supernode.main()
    assert became == ["flower-supernode", ["flower-supernode", *FLAGS]]
    assert "Flower 1.42.0 is installed" in capsys.readouterr().out


def test_a_process_that_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started, slept = [], []

    def start(line: list[str]) -> Any:
        started.append(line)
        return SimpleNamespace(wait=lambda: -9)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(InterruptedError):
        supernode.keep_running(["app"])
    assert started == [["app"], ["app"]]
    assert all(supernode.AGAIN - 1 < seconds <= supernode.AGAIN for seconds in slept)


def test_the_command_passes_flowers_flags_on(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, line: became.append(line))
    main(["deploy", "node", *FLAGS, "--poll", "2"])
    assert became == [supernode.command(FLAGS, 2.0)]


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        (["--poll", "0"], "--poll must be a positive number of seconds, got 0"),
        (["--poll", "inf"], "--poll must be a positive number of seconds, got inf"),
        (["--isolation", "process"], "--isolation: the client app runs in a process of Gossamer"),
        (["--allow-runtime-dependency-installation"], "use flower-supernode"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flag: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "node", *FLAGS, *flag]) == 2
    assert reason in capsys.readouterr().err


# The client app


class Tasks:
    """Stands for the SuperNode: it has one message for every token, and keeps what comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Callable[[Message, Context], Message]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.loaded = 0
        self.replies: list[Message] = []
        self.outputs: list[tuple[Any, str]] = []
        self.context = Context(1, 1, {}, RecordDict(), {}, 0)
        monkeypatch.setattr(SuperNode, "connect", lambda node, token: self)
        monkeypatch.setattr(resident, "_alive", lambda client: self)
        monkeypatch.setattr(resident, "install_from_fab", lambda content, skip_prompt: None)
        monkeypatch.setattr(resident, "get_load_client_app_fn", lambda **how: lambda *fab: self.load(app))
        monkeypatch.setattr(resident, "pull_task_input", self.pull)
        monkeypatch.setattr(resident, "push_message", lambda client, reply, context: self.replies.append(reply))
        monkeypatch.setattr(
            resident, "push_task_output", lambda client, context, state, why: self.outputs.append((state, why))
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def load(self, app: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
        self.loaded += 1
        return app

    def pull(self, client: "Tasks") -> tuple[Message, Context, Any, Any]:
        run, fab = SimpleNamespace(fab_id="a", fab_version="1"), SimpleNamespace(content=b"", hash_str="b")
        return Message(RecordDict(), 1, "train"), self.context, run, fab


def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def new() -> Resident:
    return Resident(SuperNode("127.0.0.1:9094", None))


def test_one_app_handles_all_tasks_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, process = Tasks(monkeypatch, answer), new()
    for token in ("a", "b", "c"):
        process.handle(Claim(1, token))
    assert tasks.loaded == 1
    assert len(tasks.replies) == 3
    assert tasks.outputs == [(SubStatus.COMPLETED, "")] * 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("no data"), ErrorCode.CLIENT_APP_RAISED_EXCEPTION),
        (LoadClientAppError("no app"), ErrorCode.LOAD_CLIENT_APP_EXCEPTION),
        (ImportError("no module"), ErrorCode.LOAD_CLIENT_APP_EXCEPTION),
    ],
)
def test_an_app_that_fails_is_reported_and_the_process_stays(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: Message, context: Context) -> Message:
        raise error

    tasks = Tasks(monkeypatch, fail)
    new().handle(Claim(1, "a"))
    (reply,) = tasks.replies
    assert reply.error.code == code
    assert reply.error.reason == f"{type(error).__name__}: {error}"
    assert tasks.outputs == [(SubStatus.FAILED, str(error))]


def test_a_task_that_is_gone_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(client: Any) -> None:
        raise RuntimeError("no message")

    tasks = Tasks(monkeypatch, answer)
    monkeypatch.setattr(resident, "pull_task_input", gone)
    new().handle(Claim(1, "a"))
    assert tasks.outputs == [(SubStatus.FAILED, "no message")]
    assert not tasks.replies


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Claim]]:
    """The tasks that were left to a new process, as that process finds them."""
    found: list[Claim] = []
    monkeypatch.setattr(resident, "GRACE", 0.01)
    monkeypatch.setattr(os, "execv", lambda program, line: found.extend(resident.handed()))
    yield found
    assert resident.HANDED not in os.environ


def test_the_next_task_of_a_run_is_for_the_same_process(replaced: list[Claim]) -> None:
    process = new()
    process.take(Claim(1, "a"))
    process.idle.set()  # it is done
    process.take(Claim(1, "b"))
    assert [process.waiting.get().token for _ in range(2)] == ["a", "b"]
    assert not replaced


def test_a_task_of_another_run_is_for_another_process(replaced: list[Claim]) -> None:
    process = new()
    process.take(Claim(1, "a"))
    process.idle.set()
    process.take(Claim(2, "b"))
    assert replaced == [Claim(2, "b")]


def test_a_process_that_is_busy_with_a_task_that_was_given_up_is_replaced(replaced: list[Claim]) -> None:
    process = new()
    process.take(Claim(1, "a"))
    process.take(Claim(1, "b"))
    assert replaced == [Claim(1, "b")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no reply was taken")])
def test_a_process_ends_with_its_work(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    resident.end_with(fail)
    assert codes == [1]


def test_a_message_on_its_way_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [PullAppMessagesResponse(), PullAppMessagesResponse()]
    messages[1].messages_list.add()
    parts = [
        PullObjectResponse(object_found=True, object_available=False),
        PullObjectResponse(object_found=True, object_available=True, object_content=b"part"),
    ]
    monkeypatch.setattr(resident, "LOCAL", 0.001)
    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", lambda client, request: messages.pop(0))
    monkeypatch.setattr(RuntimeHttpClient, "PullObject", lambda client, request: parts.pop(0))
    client = TaskClient("http://127.0.0.1:1", verify=False)
    assert len(client.PullMessages(PullAppMessagesRequest()).messages_list) == 1
    assert client.PullObject(PullObjectRequest()).object_content == b"part"
    client.close()


def test_what_does_not_come_is_not_awaited_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "LOCAL", 0.001)
    monkeypatch.setattr(resident, "ON_ITS_WAY", 0.01)
    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", lambda client, request: PullAppMessagesResponse())
    client = TaskClient("http://127.0.0.1:1", verify=False)
    assert not client.PullMessages(PullAppMessagesRequest()).messages_list
    client.close()
