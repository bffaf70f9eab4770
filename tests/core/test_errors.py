"""A mistake is a text, with the settings that it is about."""

import ast
import inspect
import pickle
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

import gossamer
from gossamer import ConfigError
from gossamer.cli.flags import by_flags, flags
from gossamer.core.errors import Mistake, Setting, require, wrong, wrong_argument
from gossamer.methods import METHODS
from gossamer.parts.codecs import CODECS, OneBit, TopK
from gossamer.parts.solvers import SGD

SOURCE = Path(inspect.getfile(gossamer)).parent


def refused(make: Callable[[], Any]) -> tuple[Mistake, ...]:
    with pytest.raises(ConfigError) as error:
        make()
    return error.value.mistakes


def test_a_mistake_is_its_text_with_part_and_field() -> None:
    (mistake,) = refused(lambda: TopK(3))
    assert mistake == "TopK.share must be above 0 and at most 1, got 3"
    assert mistake.about == Setting("TopK", "share")
    assert [str(mistake) for mistake in refused(lambda: SGD(lr=-1, clip=0))] == [
        "SGD.lr must be a positive number, got -1",
        "SGD.clip must be positive, got 0",
    ]


def test_it_names_other_settings_too() -> None:
    (mistake,) = refused(lambda: OneBit(retain="signs", fresh=True))
    assert mistake == "OneBit.retain=signs needs one matrix for all rounds: fresh=False"
    assert mistake.settings == (Setting("OneBit", "retain", "signs"), Setting("", "fresh", False))
    assert mistake.written(lambda setting: setting.field.upper()) == "RETAIN needs one matrix for all rounds: FRESH"


def test_by_flags_it_is_what_would_be_typed() -> None:
    known = flags(METHODS["onebit-cs"], "onebit-cs")
    (mistake,) = refused(lambda: OneBit(retain="signs", fresh=True))
    assert by_flags(mistake, known) == (
        "--retain signs needs one matrix for all rounds: --no-fresh",
        {"retain", "fresh"},
    )
    assert by_flags(Mistake("must be 1", Setting("Other", "nothing")), known) == ("Other.nothing must be 1", set())


def test_braces_in_a_value_are_left_alone() -> None:
    mistake = wrong_argument("names", {"a": "{}"}, "must be few")
    assert mistake == "names must be few, got {'a': '{}'}"
    assert mistake.written(lambda setting: f"--{setting.field}") == "--names must be few, got {'a': '{}'}"


def test_it_crosses_processes() -> None:
    mistake = Mistake("needs {}", Setting("A", "b", 1), Setting("", "c"))
    again = pickle.loads(pickle.dumps(mistake))
    assert (again, again.about, again.others) == (mistake, mistake.about, mistake.others)


def test_bound_parts_go_by_the_name_of_what_was_bound() -> None:
    class BoundThing:
        width = 3

    assert wrong(BoundThing(), "width", "must be 2") == "Thing.width must be 2, got 3"


def test_text_alone_is_a_mistake_about_no_setting() -> None:
    (mistake,) = refused(lambda: require((False, "no")))
    assert (mistake, mistake.about, mistake.settings) == ("no", None, ())


def test_no_error_text_is_read_by_regular_expressions() -> None:
    for name in ("flags", "request"):
        tree = ast.parse((SOURCE / f"cli/{name}.py").read_text())
        used = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not used & {"re.sub", "re.search", "re.match", "re.split"}


@pytest.mark.parametrize("name", CODECS)
def test_every_number_and_choice_of_a_codec_names_the_wrong_field(name: str) -> None:
    kind: Any = CODECS[name]
    for field in fields(kind):
        if get_origin(inspect.get_annotations(kind, eval_str=True).get(field.name)) is Literal:
            (mistake, *_) = refused(partial(kind, **{field.name: "nonsense"}))
            assert mistake.about == Setting(kind.__name__, field.name)
