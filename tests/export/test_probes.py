"""The rows of a run that an export replays are read as the run reads them."""

from pathlib import Path

import pytest
from tests.tiny import tiny_model

from posttrain.config import DataConfig, ModelConfig
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.errors import DataError
from posttrain.export.origin import Origin
from posttrain.export.probes import _Maker, find_probes
from posttrain.models.load import load_model

ROWS = [
    Row(values={"Q.text": "abc", "answer": "x"}, origin="rows:1"),
    Row(values={"answer": "y"}, origin="rows:2"),
    Row(values={"Q.text": None, "answer": "y"}, origin="rows:3"),
    Row(values={"Q.text": "de", "answer": "z"}, origin="rows:4"),
]


FILLED = [("{Q.text}", ["abc", "de"]), ("<{Q.text}>", ["<abc>", "<de>"]), ("Q.text", ["abc", "de"])]


@pytest.mark.parametrize(("prompt", "texts"), FILLED)
def test_prompts_of_a_template_are_filled_in_and_rows_without_the_column_are_left_out(tmp_path: Path, prompt, texts):
    loaded = load_model(ModelConfig(path=str(tiny_model(tmp_path)), device="cpu"))
    data = DataConfig(train="rows", prompt=prompt, answer="answer")
    renderer = Renderer.of(data, loaded.tokenizer, {})
    origin = Origin(name="run", model=ModelConfig(path=str(tmp_path)), head="tokens")
    assert [probe.text for probe in _Maker(renderer, data, origin, 64).first(ROWS, 8, kind="prompts")] == texts


def test_a_file_without_the_column_is_refused_and_nothing_hinders_the_built_in_prompts(tmp_path: Path):
    loaded = load_model(ModelConfig(path=str(tiny_model(tmp_path / "model")), device="cpu"))
    origin = Origin(name="run", model=ModelConfig(path=str(tmp_path / "model")), head="tokens")
    assert find_probes(origin, loaded, file=None, count=2, max_new_tokens=4).source == "built-in prompts"
    data = DataConfig(train="rows", prompt="Q")
    renderer = Renderer.of(data, loaded.tokenizer, {})
    with pytest.raises(DataError, match="the data has no column 'Q'"):
        _Maker(renderer, data, origin, 64).first([Row(values={"text": "abc"}, origin="rows:1")], 8, kind="prompts")
