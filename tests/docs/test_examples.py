"""The examples of the documentation run to their end."""

import runpy

import pytest

from helpers.paths import ROOT

NAMES = (
    "each_its_own",
    "early_stopping",
    "fedmrn_bounds",
    "hostile_clients",
    "less_down",
    "on_a_cluster",
    "one_bit",
    "private",
    "slow_devices",
    "thin_clients",
    "tune",
    "who_to_learn_with",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray leaves files open
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(ROOT / f"examples/{name}.py")
    monkeypatch.setattr("sys.argv", [path])
    runpy.run_path(path, run_name="__main__")
    assert capsys.readouterr().out
