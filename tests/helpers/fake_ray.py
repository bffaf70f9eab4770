"""Ray without processes: calls of actors run here, one at a time, in a random order of the actors.

What crosses between driver and actors is pickled. An actor may die before or after a call. The classes have the names
and the arguments of those parts of Ray that Gossamer uses.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayTaskError

from gossamer.engines.ray import actor, cluster, nodes

Deadly = Callable[[str, tuple[Any, ...]], BaseException | None]
"""What kills an actor that is about to run a method with some arguments, if anything."""


class Ref:
    """A reference: its value or error once it is done."""

    def __init__(self, actor: "FakeActor | None" = None) -> None:
        self.actor, self.done = actor, actor is None
        self.value: Any = None
        self.error: BaseException | None = None

    def __reduce__(self) -> Any:
        return _ref, (id(self),)


REFS: dict[int, Ref] = {}


def _ref(number: int) -> Ref:
    return REFS[number]


class FakeActor:
    """An actor: an object of this process, and its calls in order."""

    def __init__(self, ray: "FakeRay", kind: type, node: str, args: tuple[Any, ...]) -> None:
        self.ray, self.kind, self.node = ray, kind, node
        self.args = cloudpickle.dumps(args)
        self.calls: deque[tuple[str, bytes, Ref]] = deque()
        self.made: Any = None
        self.dead: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    def step(self) -> None:
        """Run the next call, or die."""
        name, args, ref = self.calls.popleft()
        self.dead = self.dead or self.ray.deadly(name, cloudpickle.loads(args))
        if self.dead is None:
            try:
                self.made = self.made or self.kind(*cloudpickle.loads(self.args))
                given = [self.ray.get(arg) if isinstance(arg, Ref) else arg for arg in cloudpickle.loads(args)]
                ref.value = cloudpickle.loads(cloudpickle.dumps(getattr(self.made, name)(*given)))
            except Exception as error:
                ref.error = RayTaskError(name, "traceback", error)
        else:
            ref.error = self.dead
        ref.done = True


class _Method:
    def __init__(self, actor: FakeActor, name: str) -> None:
        self.actor, self.name = actor, name

    def options(self, **_: Any) -> "_Method":
        return self

    def remote(self, *args: Any) -> Ref:
        ref = Ref(self.actor)
        REFS[id(ref)] = ref
        self.actor.calls.append((self.name, cloudpickle.dumps(args), ref))
        return ref


class _Remote:
    def __init__(self, ray: "FakeRay", kind: type) -> None:
        self.ray, self.kind, self.node = ray, kind, ""

    def options(self, scheduling_strategy: Any, **_: Any) -> "_Remote":
        self.node = scheduling_strategy.node_id
        return self

    def remote(self, *args: Any) -> FakeActor:
        actor = FakeActor(self.ray, self.kind, self.node, args)
        self.ray.actors.append(actor)
        return actor


class FakeRay:
    """A cluster of nodes with a number of cores each."""

    def __init__(self, seed: int = 0, cores: Sequence[int] = (2,), deadly: Deadly = lambda name, args: None) -> None:
        self.rng, self.deadly = random.Random(seed), deadly
        self.actors: list[FakeActor] = []
        self.hosts = {f"{number:056x}": count for number, count in enumerate(cores, 1)}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        room = {"memory": 64e9, "object_store_memory": 8e9}
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": f"node{int(name, 16)}",
                "Alive": True,
                "Resources": {"CPU": count, **room},
            }
            for name, count in self.hosts.items()
        ]

    def available_resources(self) -> dict[str, float]:
        return {}

    def remote(self, kind: type) -> _Remote:
        return _Remote(self, kind)

    def put(self, value: Any) -> Ref:
        ref = Ref()
        ref.value = cloudpickle.loads(cloudpickle.dumps(value))
        REFS[id(ref)] = ref
        return ref

    def kill(self, actor: FakeActor) -> None:
        actor.dead = actor.dead or ActorDiedError()

    def wait(self, refs: Sequence[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        while len(done := [ref for ref in refs if ref.done]) < num_returns:
            self.rng.choice([actor for actor in self.actors if actor.calls]).step()
        return self.rng.sample(done, num_returns), []

    def get(self, ref: Ref) -> Any:
        while not ref.done:
            assert ref.actor is not None
            ref.actor.step()
        if ref.error is not None:
            raise ref.error
        return ref.value


def use_fake_ray(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeRay:
    """Replace Ray in all modules that use it."""
    made = FakeRay(**options)
    for module in (actor, cluster, nodes):
        monkeypatch.setattr(module, "ray", made)
    return made
