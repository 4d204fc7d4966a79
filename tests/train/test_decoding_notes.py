"""A model that continuous batching cannot decode is trained all the same, and the run says what that costs."""

import json

import pytest
from tests.tiny import tiny_model, tiny_tokenizer, write_prompts
from transformers import BloomConfig, BloomForCausalLM

import posttrain


def warnings_of(tmp_path, model):
    write_prompts(tmp_path / "prompts.jsonl", count=8)
    (tmp_path / "rewards.py").write_text("def length(completion, **row):\n    return len(completion) / 8\n")
    run = posttrain.train(
        {
            "model": {"path": str(model), "device": "cpu"},
            "algorithm": "grpo",
            "data": {"train": str(tmp_path / "prompts.jsonl"), "eval_fraction": 0.25},
            "rewards": [{"function": f"{tmp_path / 'rewards.py'}:length"}],
            "sampling": {"group_size": 2, "max_completion_length": 4},
            "train": {"steps": 1, "prompts_per_step": 2},
            "evaluation": {"writing": 0, "prompts": 2, "samples": 1},
            "guards": {"max_truncated": 1.0},
            "output": str(tmp_path / "run"),
            "report": False,
        }
    )
    events = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "warning"]


def test_a_run_whose_rows_are_padded_says_why_before_it_begins(tmp_path, capfd):
    tokenizer = tiny_tokenizer()
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=2, n_head=4, pad_token_id=0, eos_token_id=2)
    BloomForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    [note] = [text for text in warnings_of(tmp_path, tmp_path / "model") if "continuous batching" in text]
    assert "no position_ids" in note
    assert "continuous batching" in capfd.readouterr().out.partition("step 1/1")[0]


@pytest.mark.slow
def test_a_run_whose_rows_join_each_other_does_not_speak_of_it(tmp_path):
    assert not [text for text in warnings_of(tmp_path, tiny_model(tmp_path / "model")) if "batching" in text]
