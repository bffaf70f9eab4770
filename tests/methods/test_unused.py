"""Settings that have no effect next to another setting are refused, and named."""

from typing import Any

import pytest

from gossamer import METHODS, ConfigError


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("fedspa", {"mask": "rsm", "rate": 0.3}, "mask=rsm: the masks do not move, so rate has no effect"),
        ("fedspa", {"mask": "rsm", "regrow": "random"}, "mask=rsm: the masks do not move, so regrow has no effect"),
        ("sub-fedavg", {"channel_share": 0.3}, "only hybrid pruning removes channels, so channel_share has no effect"),
        ("sub-fedavg", {"ties": {"a": {}}}, "only hybrid pruning removes channels, so ties has no effect"),
        ("perm", {"complexity": 2.0}, "complexity: all models have the same size, so it has no effect"),
        ("onebit-cs", {"retain": "nothing", "accumulate": True}, "nothing is kept, so accumulate has no effect"),
    ],
)
def test_a_setting_without_effect_is_refused(method: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        METHODS[method](**given)


def test_defaults_and_settings_with_an_effect_are_accepted() -> None:
    METHODS["fedspa"](mask="rsm")
    METHODS["fedspa"](rate=0.3, regrow="random")
    METHODS["sub-fedavg"](prune="hybrid", channel_share=0.3)
    METHODS["onebit-cs"](accumulate=True)
    METHODS["perm"](complexity=2.0, capacities=(1.0, 0.5))


def test_the_probe_of_perm_is_named_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="probe must be at least 2, as half of the samples estimate the noise, got 1"):
        METHODS["perm"](probe=1)
    with pytest.raises(ConfigError, match="probe must be at least 1, got 0"):
        METHODS["perm"](probe=0, lambda_=0.5)
    METHODS["perm"](probe=1, lambda_=0.5)
    with pytest.raises(ConfigError, match="complexity must be finite and not negative, got -1"):
        METHODS["perm"](complexity=-1.0)
