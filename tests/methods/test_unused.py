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
