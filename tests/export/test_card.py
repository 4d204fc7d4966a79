"""The model card: the metadata that the Hub reads, the text for people, and the data that must not appear."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from tests.catalogue import catalogue
from tests.export.conftest import KINDS, Runs, kinds

from posttrain.algorithms import ALGORITHMS
from posttrain.export.redact import REMOVED, shown, shown_text

MEASURED = {
    "full": "greedy score",
    "sft": "loss",
    "pairs": "accuracy",
    "labels": "",
    "reward_model": "accuracy",
}
"""The measures that have a row in the table of results."""


def card_of(runs: Runs, kind: str) -> str:
    return (runs.export(kind).folder / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds(MEASURED))
def test_the_card_of_every_kind_of_run_has_its_parts(runs: Runs, kind: str):
    text = card_of(runs, kind)
    data = ModelCard(text).data
    assert data.library_name == "transformers"
    assert data.tags == ["posttrain", KINDS[kind][0]]
    assert data.pipeline_tag == ("text-classification" if kind == "reward_model" else "text-generation")
    assert data.base_model is None, "a folder does not exist on the Hub"
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["Training", "Data", "Results", "Curves", "How to load", "Checked"]
    assert ALGORITHMS[KINDS[kind][0]].card.title in text
    assert ("https://arxiv.org/abs/" in text) == ("arXiv:" in ALGORITHMS[KINDS[kind][0]].card.paper)
    assert f"`{KINDS[kind][1]}`" in text
    assert re.search(rf"^\| {MEASURED[kind]}.* \| [-\d.]+ \(.* to .*\) \| [-\d.]+ \(.* to .*\) \| 6 \|$", text, re.M)


@pytest.mark.slow
def test_the_card_says_which_texts_end_an_answer_and_what_generate_needs_for_them(runs: Runs):
    text = card_of(runs, "stopping")
    assert 'Answers also end at these texts: `"zz"`, `"a"`' in text
    assert "max_new_tokens=256, tokenizer=tokenizer)" in text
    assert "stop_strings" not in card_of(runs, "full")


@pytest.mark.parametrize("kind", kinds(MEASURED))
def test_the_card_knows_nothing_of_the_machine(runs: Runs, kind: str):
    text = card_of(runs, kind)
    assert str(runs.folder) not in text
    assert not re.search(r"(?<![\w:/])/(home|tmp|root|Users|work|usr)/", text)


def test_the_configuration_in_the_card_is_that_of_the_run(runs: Runs):
    text = card_of(runs, "full")
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert config["train"]["learning_rate"] == 1e-2
    assert config["model"]["path"] == "model"
    assert config["data"]["train"] == "prompts.jsonl"
    assert config["rewards"][0]["function"] == "rewards.py:vowels"


def test_the_curves_are_pictures_that_stand_alone(runs: Runs):
    folder = runs.export("full").folder
    named = re.findall(r"!\[.*?\]\((plots/.*?\.svg)\)", card_of(runs, "full"))
    assert "plots/reward.svg" in named
    assert sorted(named) == sorted(f"plots/{path.name}" for path in (folder / "plots").iterdir())
    for name in named:
        picture = ElementTree.parse(folder / name).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert "style" in ElementTree.tostring(picture, encoding="unicode")


def test_names_on_the_hub_are_named_for_the_hub():
    from posttrain.config import load_config
    from posttrain.export.card import front_matter
    from posttrain.export.origin import Origin, lineage

    config = load_config(
        {
            "model": "Qwen/Qwen3-0.6B",
            "algorithm": "sft",
            "data": {"train": ["trl-lib/Capybara", "/data/mine.jsonl"]},
            "train": {"steps": 1},
        }
    ).config
    origin = Origin(name="a", model=config.model, head="tokens", run=Path("a"), config=config, step=1)
    found = front_matter(origin, lineage(origin), "hf")
    assert found["base_model"] == "Qwen/Qwen3-0.6B"
    assert found["datasets"] == ["trl-lib/Capybara"]


@catalogue(
    "given, expected",
    [
        ("/home/me/models/qwen", "qwen"),
        ("../data/train.jsonl", "train.jsonl"),
        ("data/train.jsonl", "train.jsonl"),
        ("C:\\Users\\me\\train.csv", "train.csv"),
        ("~/rewards.py:f", "rewards.py:f"),
        ("runs/a/checkpoints/step-000002/model", "model"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("task:sort", "task:sort"),
        ("https://me:pw@judge.internal:8000/v1?key=1", f"https://{REMOVED}"),
        ("Answer with yes and/or no, see /home/me/notes.txt.", "Answer with yes and/or no, see notes.txt."),
        ("Answer yes and/or no.", "Answer yes and/or no."),
        ("/home/me/My Documents/train.jsonl", "train.jsonl"),
        ("/home/me/My Documents/the rows.jsonl", "the rows.jsonl"),
        ("my secret project/train.jsonl", "train.jsonl"),
        ("C:\\Users\\John Doe\\train.csv", "train.csv"),
        ("See /home/me/My Documents/notes.txt and/or ask.", "See notes.txt and/or ask."),
        ("sent with Bearer abcdefghijkl0123", f"sent with {REMOVED}"),
    ],
)
def test_a_path_is_shown_as_its_name(given, expected):
    assert shown_text(given) == expected


def test_secrets_are_removed_and_tokens_of_texts_are_not():
    given = {"api_key": "sk-1", "hub_token": "hf_x", "X-Api": "1", "X-Api-Key": "2", "key": "3", "bearer": "4"}
    assert set(shown(given).values()) == {REMOVED}
    harmless = {"max_tokens": 5, "eos_token": "<|im_end|>", "stop_token": "END", "pad_token": "<pad>", "keyed": "by x"}
    assert shown(harmless) == harmless


def test_nothing_that_is_sent_to_a_server_is_shown():
    given = {"judge": {"model": "m", "request": {"user": "me", "extra": {"a": 1}}, "headers": {"X-Tenant": "acme"}}}
    assert shown(given)["judge"] == {
        "model": "m",
        "request": {"user": REMOVED, "extra": REMOVED},
        "headers": {"X-Tenant": REMOVED},
    }
