"""The examples of the documentation run to their end."""

import runpy

import pytest

from helpers.paths import ROOT

NAMES = ("each_its_own", "early_stopping", "fedmrn_bounds", "one_bit", "thin_clients", "who_to_learn_with")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
