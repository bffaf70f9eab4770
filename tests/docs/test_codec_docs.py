"""What docs/codecs.md says of the codecs is so."""

import doctest
import re

import pytest
import torch

from gossamer.core.codec import Coding
from gossamer.core.random import key, uniform
from gossamer.core.specs import parse
from gossamer.core.types import Layout
from gossamer.core.wire import Body
from gossamer.parts import codecs
from gossamer.parts.codecs import CODECS, MaskedNoise, OnWeights
from helpers.paths import ROOT

PAGE = (ROOT / "docs/codecs.md").read_text()
ROW = r"^\| `(\w+\(.*?\))` \| (?:`(\S+)`)? *\| (.+?) \| (.+?) \| (yes|no).*? \| (yes|no).*? \|$"
ROWS = re.findall(ROW, PAGE, re.M)


def test_every_row_is_a_codec_of_the_library() -> None:
    assert len(ROWS) >= 16
    named = {row[0].partition("(")[0] for row in ROWS}
    others = {"SampledMask", "KLMS", "CommonMaskedNoise", "Seeds"}
    assert named <= {codec.__name__ for codec in CODECS.values()} | others


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_is_true(row: tuple[str, ...]) -> None:
    written, spec, arrays, bits, unbiased, exact = row
    codec = eval(written, {name: getattr(codecs, name) for name in dir(codecs)})
    if spec:
        assert parse(spec, CODECS, "codec") == codec
    assert codec.unbiased == (unbiased == "yes")
    assert codec.exact == (exact == "yes")
    x = uniform(key(1), 389_920) - 0.5
    layout = Layout.of({"x": x})
    payload = codec.encode(x, Coding(layout, key(2)))
    assert set(re.findall(r"`(\w+)`", arrays)) <= set(payload)
    if re.fullmatch(r"[\d.]+", bits):
        sent = sum(array.numel() * array.element_size() for array in payload.values())
        assert 8 * sent / len(x) == pytest.approx(float(bits), rel=0.01)


def test_examples_hold_and_the_message_is_the_one_shown() -> None:
    result = doctest.testfile(str(ROOT / "docs/codecs.md"), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0
    weight = torch.tensor([[0.004, -0.002, 0.006], [0.001, 0.008, -0.009]])
    change = {"conv.weight": weight, "norm.bias": torch.tensor([0.5, -1.0])}
    layout = Layout.of(change)
    block = re.search(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = [re.match(r"((?:[0-9a-f]{2} )+)", line) for line in block[1].splitlines()]
    shown = bytes.fromhex("".join(line[1] for line in lines if line))
    codec = OnWeights(MaskedNoise(noise="uniform", alpha=0.01))
    assert Body.of(codec.encode(layout.flatten(change), Coding(layout, key(1)))).data == shown
