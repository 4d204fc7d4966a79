"""docs/advise.md agrees with the guides, and shows the output of the command."""

from pathlib import Path

import pytest
from tests.catalogue import catalogue
from tests.lab.advise.situations import table
from tests.lab.advise.written import EXAMPLES, sections, written

from posttrain.config import load_config
from posttrain.lab.advise.advisor import advise
from posttrain.lab.advise.ranges import remarks

PAGE = Path(__file__).parents[3] / "docs" / "advise.md"
RENEW = "python -m tests.lab.advise.written docs/advise.md; python -m tests.lab.advise.situations docs/advise.md"


PARTS = sections() | {"situations": table()}


@catalogue("name", PARTS)
def test_the_page_is_the_generated_one(name):
    text = PAGE.read_text(encoding="utf-8")
    assert written(text, {name: PARTS[name]}) == text, RENEW


def test_the_commands_above_the_output_are_those_that_made_it():
    text = PAGE.read_text(encoding="utf-8")
    for name, facts in EXAMPLES.items():
        command = text.partition(f"<!-- {name} -->")[0].rpartition("`posttrain advise ")[2].partition("`")[0]
        assert all(f"--{fact}" in command for fact in facts)
        assert advise(**facts).render(details=0).splitlines()[0] in text


def test_the_remark_on_the_page_is_one_that_is_made():
    config = {"model": "Qwen/Qwen3-0.6B", "algorithm": "grpo", "data": {"train": "t"}, "rewards": [{"name": "math"}]}
    (remark,) = remarks(load_config(config | {"train": {"steps": 100, "learning_rate": 2e-5}}).config)
    assert " ".join(str(remark).split()) in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_a_page_without_the_mark_is_refused():
    with pytest.raises(ValueError, match="no mark <!-- rules -->"):
        written("# Nothing", {"rules": "x"})
