"""Mutated messages of every method, codec and exchange, both ways; most have a mended checksum.

    PYTHONPATH=tests python tests/fuzz/messages.py [--full] [--seconds S] [--seed N]

A method runs honestly for two rounds on a small task. Before each upload is folded, and before each download is read,
mutants of it go the same way. Each is refused with ``PayloadError`` and leaves the accumulator, the staged models and
the server state bit for bit as they were, or it is a message that this client might have sent: in its only form, of
this round, client, codec, exchange and version, with arrays of known names, and the accumulator stays finite.
"""

import copy
import random
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzz import campaign
from gossamer import METHODS, Delta, Method, Options, fedavg
from gossamer.core import wire
from gossamer.core.errors import GossamerError, PayloadError
from gossamer.core.exchange import Outcome
from gossamer.core.jobs import Folding
from gossamer.core.untrusted import LARGEST, MOST_SAMPLES
from gossamer.core.wire import CHECKED, HEADER, Frame
from gossamer.engines.client import ClientTask
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.parts.codecs import CODECS, OnWeights
from gossamer.parts.samplers import PowerOfChoice
from helpers import recorder
from helpers.codec_specs import SUMMED

EACH = 40
"""Mutants per message."""

VALUES = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, -3.4e38, LARGEST, -2 * LARGEST, float("inf"), float("nan"), 2.0**31)
WEIGHTS = (0.0, 1.0, 0.5, 2.0**62, 3.3e38, 3.5e38, 1.7e308, MOST_SAMPLES, MOST_SAMPLES + 1.0, 7.0)
NAMES = ("values", "scale", "@noise", "@choice", "rest.values", "x" * 255, "0.values", "@labels", "@", "bits")
TYPES = tuple(wire.CODES)


def methods() -> dict[str, tuple[Callable[[], Method], dict[str, Any]]]:
    """Every recorded case of a method, and FedAvg with each codec up and down."""
    private = {name for name, kind in CODECS.items() if kind().private}

    def up(name: str) -> Callable[[], Method]:
        if name in private:
            return lambda: fedavg(**recorder.SGD, weights="uniform").with_parts(codec=CODECS[name]())
        return lambda: fedavg(**recorder.SGD).with_parts(codec=OnWeights(CODECS[name]()))

    def down(name: str) -> Callable[[], Method]:
        return lambda: fedavg(**recorder.SGD).with_parts(down=OnWeights(CODECS[name]()))

    found: dict[str, tuple[Callable[[], Method], dict[str, Any]]] = {name: (METHODS[name], {}) for name in METHODS}
    found |= {**recorder.CASES, **{f"up {name}": (up(name), {}) for name in CODECS if name not in SUMMED}}
    found |= {f"down {name}": (down(name), {}) for name in CODECS if name not in private}
    found["delta"] = (lambda: METHODS["fedmrn"](**recorder.SGD).with_parts(down=Delta()), {})
    found["loss probe"] = (lambda: fedavg(**recorder.SGD).with_parts(sampler=PowerOfChoice(4)), {})
    return found


def contents(value: Any) -> Iterator[Any]:
    """All tensors, arrays and numbers in an accumulator, in a fixed order."""
    if isinstance(value, Tensor):
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            yield str(name)
            yield from contents(value[name])
    elif isinstance(value, list | tuple):
        yield len(value)
        for each in value:
            yield from contents(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from contents(getattr(value, field.name))
    elif isinstance(value, int | float | str | bytes | None):
        yield value
    elif hasattr(value, "__dict__") and not callable(value):
        yield from contents(vars(value))


def finite(value: Any) -> bool:
    """Whether the sums of an accumulator are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    if is_dataclass(value) and not isinstance(value, type):
        return all(finite(getattr(value, field.name)) for field in fields(value))
    return True


def mended(data: bytes) -> bytes:
    """The bytes with the length and the checksum that they should have, if they have a header."""
    if len(data) < HEADER.size:
        return data
    body, head = data[HEADER.size :], bytearray(data[:CHECKED])
    struct.pack_into("<Q", head, CHECKED - 8, len(body))
    return bytes(head) + struct.pack("<I", wire.checksum(bytes(head), wire.checksum(body))) + body


def damaged(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Bytes with flipped, changed, lost, added or foreign bytes."""
    raw = bytearray(data)
    kind = rng.randrange(6)
    at = rng.randrange(HEADER.size) if rng.random() < 0.4 else rng.randrange(len(raw))
    if kind == 0:
        raw[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        raw[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 2:
        del raw[at : at + rng.randrange(1, 64)]
    elif kind == 3:
        raw[at:at] = rng.randbytes(rng.randrange(1, 64))
    elif kind == 4:
        raw[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)))
    else:
        return rng.choice(others)
    return bytes(raw)


def rewritten(data: bytes, rng: random.Random) -> bytes:
    """A well-formed message with another field, or with arrays of other values, types, lengths or names."""
    message = wire.unpack(data)
    own = {name: array.clone() for name, array in message.payload.items()}
    kind = rng.randrange(7)
    names = sorted(own)
    name = rng.choice(names) if names else ""
    changed: dict[str, Any] = {}
    if kind == 0 or not names:
        changed = rng.choice(
            [
                {"weight": rng.choice(WEIGHTS)},
                {"exchange": rng.randrange(4)},
                {"client": rng.randrange(8)},
                {"round": rng.randrange(4)},
                {"version": rng.randrange(4)},
                {"codec": rng.randrange(2**32)},
                {"kind": rng.choice(wire.KINDS)},
            ]
        )
    elif kind in (1, 2) and len(own[name]):
        array = own[name]
        at = slice(None) if rng.random() < 0.2 else rng.randrange(len(array))
        if array.is_floating_point():
            array[at] = torch.tensor(rng.choice(VALUES), dtype=torch.float64).to(array.dtype)
        else:
            ends = torch.iinfo(array.dtype)
            array[at] = rng.choice((0, 1, ends.max, ends.min, rng.randint(0, ends.max)))
    elif kind == 3:
        own[name] = own[name].to(rng.choice(TYPES))
    elif kind == 4:
        size = rng.choice((0, 1, len(own[name]) + 1, max(0, len(own[name]) - 1), 2 * len(own[name])))
        own[name] = own[name].repeat(3)[:size]
    elif kind == 5:
        own[rng.choice(NAMES)] = own.pop(name) if rng.random() < 0.5 else own[name].clone()
    else:
        del own[name]
    return wire.pack(
        replace(message, payload=own, common={n: a for n, a in message.common.items() if n not in own}, **changed)
    )


def mutant(data: bytes, others: list[bytes], rng: random.Random) -> tuple[bytes, bool]:
    """A mutant of a message, and whether its checksum was mended."""
    if rng.random() < 0.5:
        return rewritten(data, rng), True
    made, mend = damaged(data, others, rng), rng.random() < 0.7
    return (mended(made) if mend else made), mend


class Attacked(Simulation):
    """A simulation in which mutants of each message are tried before the message itself."""

    def attack(self, rng: random.Random, counts: Counter[str]) -> None:
        """Prepare to attack the rounds."""
        self.rng, self.counts, self.seen = rng, counts, list[bytes]()

    def mutants(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        self.seen = [*self.seen[-30:], data]
        for _ in range(EACH):
            made, mend = mutant(data, self.seen, self.rng)
            if made != data:
                yield made, mend

    def client_tasks(self, stage: Stage, ledger: Ledger, inbox: Replies) -> Iterator[ClientTask]:
        for task in super().client_tasks(stage, ledger, inbox):
            for made, _ in self.mutants(bytes(task.data)) if task.data else ():
                try:
                    job = stage.exchange.read_download(Frame.of(made), task.state, task.clock, task.key)
                except PayloadError:
                    self.counts["downloads refused"] += 1
                else:
                    self.check_head(made, bytes(task.data), stage)
                    self.check_names(set(wire.unpack(made).arrays), set(wire.unpack(bytes(task.data)).arrays))
                    assert all(finite(model) for model in job.models), "a download that is not finite was accepted"
                    self.counts["downloads accepted"] += 1
            yield task

    def fold_reply(
        self, stage: Stage, client: int, reply: ClientReply, acc: Folding, ledger: Ledger
    ) -> tuple[Folding, Outcome]:
        if reply.data is not None:
            acc = self.try_uploads(stage, client, bytes(reply.data), acc)
        return super().fold_reply(stage, client, reply, acc, ledger)

    def try_uploads(self, stage: Stage, client: int, data: bytes, acc: Folding) -> Folding:
        honest, kept = set(wire.unpack(data).arrays), copy.deepcopy(acc)
        before, state = self.noted(stage, client, acc), list(contents(self.server))
        for made, mend in self.mutants(data):
            try:
                frame = Frame.of(made)
                wire.read_sizes(frame)
                acc, _, _ = self._fold(stage, client, ClientReply(frame), acc)
            except PayloadError:
                self.counts["uploads refused"] += 1
                assert self.noted(stage, client, acc) == before, "a refused upload changed the accumulator"
            except GossamerError as error:
                raise AssertionError(f"refused with {type(error).__name__}: {error}") from error
            else:
                assert mend, "an upload with a wrong checksum was accepted"
                self.check_head(made, data, stage)
                self.check_names(set(wire.unpack(made).arrays), honest)
                assert finite(acc), "the accumulator is not finite"
                self.counts["uploads accepted"] += 1
                acc = copy.deepcopy(kept)
                before = self.noted(stage, client, acc)
        assert list(contents(self.server)) == state, "an upload changed the server state"
        return acc

    def noted(self, stage: Stage, client: int, acc: Folding) -> list[Any]:
        owner = stage.assigned[client].owner
        return [*contents(acc), *contents(self.models.staged(owner) if owner is not None else {})]

    def check_head(self, made: bytes, data: bytes, stage: Stage) -> None:
        message, honest = wire.unpack(made), wire.unpack(data)
        assert wire.pack(message) == made, "a message that is not in its only form was accepted"
        assert message.head._replace(weight=0.0) == honest.head._replace(weight=0.0), "a message of another place"
        assert message.exchange == stage.exchange.number
        assert message.kind == "down" or 0 < message.weight <= MOST_SAMPLES

    def check_names(self, found: Iterable[str], honest: Iterable[str]) -> None:
        """Names may differ between forms of one codec, such as a bitmap and gaps, and not in other ways."""
        forms = {"bitmap", "quotients", "remainders", "signs", "lengths", "digits", "levels", "values"}
        new = {name.rpartition(".")[2] for name in set(found) - set(honest)}
        assert new <= forms, f"unknown arrays were accepted: {new}"


def group(number: int) -> campaign.Case:
    """Two rounds of one method, attacked."""
    cases = methods()
    name = sorted(cases)[number % len(cases)]
    make, more = cases[name]

    def attack(rng: random.Random, counts: Counter[str]) -> None:
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen = {"rounds": 2, "per_round": 2, "executor": "one-by-one", "seed": rng.randrange(1000), **more}
            method = make()
            task = recorder.task_for(method, chosen.pop("split", "dirichlet:1"))
            try:
                run = Attacked(method, task, Options(**chosen))
                run.attack(rng, counts)
                run.run(None, lambda record: None)
            except BaseException as error:
                error.add_note(f"in the case {name!r}")
                raise

    return attack


if __name__ == "__main__":
    campaign.main("messages", group, 1_000_000, room=400.0)
