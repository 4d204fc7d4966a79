"""`posttrain.loop` samples, scores and differentiates like a run. Its page and its notebooks work."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from notebooks.downloads import download
from tests.tiny import tiny_model
from tests.train.letters import count_a
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain import loop
from posttrain.algorithms import GRPO, Distillation
from posttrain.errors import ConfigError, ModelError
from posttrain.loop import Policy, Sampling, build_rewards, count_totals

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ROWS = [{"prompt": letter, "answer": letter} for letter in "abcdef"]
SAMPLING = Sampling(group_size=4, max_completion_length=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("loop") / "model")


def step(policy: Policy, rewards, seed: int):
    prompts = policy.prompts(ROWS)
    groups = policy.sample(prompts, SAMPLING, rewards, seed=seed)
    experience = policy.experience(groups, rewards)
    return groups, experience, GRPO().prepare(GRPO().to_batch(experience))


def test_a_policy_samples_with_the_weights_of_now_and_says_of_its_tokens_what_it_drew_them_with(folder):
    policy = Policy(folder, temperature=0.7)
    with build_rewards([count_a]) as rewards:
        for number in range(2):
            groups, experience, batch = step(policy, rewards, seed=number)
            said_BT, mask_BT = policy.logprobs(batch), batch.completion_mask_BT
            torch.testing.assert_close(said_BT[mask_BT], batch.sampling_logprobs_BT[mask_BT], rtol=0, atol=1e-4)
            with torch.no_grad():  # like an optimizer step
                for parameter in policy.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
    texts = [[completion.text for completion in group.completions] for group in groups]
    expected = [count_a(four, 4 * [row["answer"]]) for four, row in zip(texts, ROWS, strict=True)]
    torch.testing.assert_close(experience.rewards_PG, torch.tensor(expected))


def test_micro_batches_add_up_to_the_gradient_of_the_plain_forward_pass(folder):
    policy = Policy(folder)
    with build_rewards([count_a]) as rewards:
        _, _, batch = step(policy, rewards, seed=0)
    totals, micros = count_totals(batch), 0
    for micro in policy.microbatches(batch, tokens=16):
        loss, _ = GRPO().loss(policy(micro), micro, totals)
        loss.backward()
        micros += 1
    found = [parameter.grad.clone() for parameter in policy.parameters()]
    assert micros > 2
    policy.model.zero_grad()
    tokens = batch.tokens
    attended = torch.arange(tokens.input_ids_BT.shape[1])[None] < tokens.lengths_B[:, None]
    logits_BTV = policy.model(input_ids=tokens.input_ids_BT, attention_mask=attended.long()).logits[:, :-1]
    chosen_BT = logits_BTV.log_softmax(-1).gather(-1, tokens.input_ids_BT[:, 1:, None])[..., 0]
    loss, _ = GRPO().loss(torch.nn.functional.pad(chosen_BT, (1, 0)), batch, totals)
    loss.backward()
    for parameter, gradient in zip(policy.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-6)


def test_a_loaded_model_with_its_tokenizer_and_a_dataset_give_the_same(folder):
    loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = []
    for policy, rows in ((Policy(loaded), Dataset.from_list(ROWS)), (Policy(folder), ROWS)):
        groups = policy.sample(policy.prompts(rows), SAMPLING, seed=3)
        texts.append([[completion.ids for completion in group.completions] for group in groups])
    assert texts[0] == texts[1]
    with pytest.raises(ModelError, match="float32"):
        Policy((loaded[0].to(torch.bfloat16), loaded[1]))


@pytest.fixture(scope="module")
def policy(folder) -> Policy:
    return Policy(folder, temperature=0.7)


def test_groups_without_scores_have_no_rewards_and_your_own_numbers_score_them(policy):
    groups = policy.sample(policy.prompts(ROWS), SAMPLING, seed=0)
    unscored = policy.experience(groups)
    assert unscored.rewards_PG.isnan().all()
    with pytest.raises(ConfigError, match="experience without rewards"):
        GRPO().to_batch(unscored)
    numbers_PG = torch.arange(24.0).reshape(6, 4)
    numbers_PG[2, 1] = torch.nan
    own = policy.experience(groups, numbers_PG)
    torch.testing.assert_close(own.rewards_PG, numbers_PG, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(own.scored_PG, ~numbers_PG.isnan())
    assert GRPO().advantages(own)[0].abs().sum() > 0
    numbers_PG[2, 1] = 3.0
    replaced = replace(unscored, rewards_PG=numbers_PG)
    assert torch.equal(GRPO().advantages(replaced), GRPO().advantages(policy.experience(groups, numbers_PG)))


def test_groups_without_scores_train_on_a_teacher(policy):
    experience = policy.experience(policy.sample(policy.prompts(ROWS), SAMPLING, seed=0))
    sampled_BT = experience.sampling_logprobs_BT
    rated = replace(experience, old_logprobs_BT=sampled_BT, teacher_logprobs_BT=sampled_BT - 0.5)
    batch = Distillation().prepare(Distillation().to_batch(rated))
    assert count_totals(batch).tokens == int(experience.completion_mask_BT.sum()) > 0
    assert sum(micro.num_rows for micro in policy.microbatches(batch, tokens=16)) == 24


@pytest.mark.parametrize(
    "given", [[[1.0]], np.zeros((6, 4)), "exact_match", ["exact_match"]], ids=lambda x: str(type(x))
)
def test_rewards_that_are_not_built_are_refused(given, policy):
    with pytest.raises(ConfigError, match=r"(?s)rewards of type (list|ndarray|str); .*build_rewards\(\["):
        policy.sample(policy.prompts(ROWS[:1]), SAMPLING, given, seed=0)
    groups = policy.sample(policy.prompts(ROWS[:1]), SAMPLING, seed=0)
    with pytest.raises(ConfigError, match=r"(?s)rewards of type .* or a tensor of your own numbers .*torch\.tensor"):
        policy.experience(groups, given)


def test_rewards_that_did_not_score_the_groups_are_refused(policy):
    prompts = policy.prompts(ROWS[:2])
    plain = policy.sample(prompts, SAMPLING, seed=0)
    with build_rewards([count_a]) as rewards, build_rewards(["exact_match"]) as others:
        scored = policy.sample(prompts, SAMPLING, rewards, seed=0)
        for groups, given in ((scored, None), (plain, rewards), (scored, others), ([scored[0], plain[1]], rewards)):
            with pytest.raises(ConfigError, match=r"groups with scores by (?s:.)*Pass the same rewards to sample"):
                policy.experience(groups, given)


def test_answers_that_cannot_be_trained_on_are_sampled_and_refused_as_experience(policy):
    for name, value in {"top_p": 0.5, "top_k": 3, "min_p": 0.1}.items():
        groups = policy.sample(policy.prompts(ROWS[:1]), SAMPLING.model_copy(update={name: value}), seed=0)
        with pytest.raises(ConfigError, match=f"sampling.{name} = {value} in training"):
            policy.experience(groups)


def test_every_setting_of_sampling_changes_something_or_is_refused(policy):
    """A setting that the policy does not read is refused, as a run refuses it."""
    for name, value in {"temperature": 0.1, "max_turns": 3, "max_trajectory_length": 9}.items():
        sampling = Sampling(group_size=4, max_completion_length=5, **{name: value})
        with pytest.raises(ConfigError, match=f"sampling.{name} = {value}"):
            policy.sample(policy.prompts(ROWS[:1]), sampling, seed=0)
    same = Sampling(group_size=4, max_completion_length=5, temperature=0.7)
    texts = [policy.sample(policy.prompts(ROWS[:1]), one, seed=0)[0].completions for one in (same, SAMPLING)]
    assert texts[0] == texts[1]


def test_the_loop_of_the_module_runs(folder):
    """One step of the example in the docstring, with a tiny model."""
    example = textwrap.dedent(str(loop.__doc__).partition("\n\n")[2].partition("\n\n")[0])
    for name, value in {'"Qwen/Qwen3-0.6B"': "folder", '"exact_match"': "count_a", "256": "5"}.items():
        assert name in example
        example = example.replace(name, value)
    scope = vars(loop) | {"algorithm": GRPO(), "rows": ROWS, "step": 0, "folder": folder, "count_a": count_a}
    exec(example, scope)
    scope["rewards"].close()
    assert any(parameter.grad.abs().sum() > 0 for parameter in scope["policy"].parameters())


# --- the page and the notebooks --------------------------------------------------------------------------------------


def cells(path: Path, kind: str = "code") -> list[str]:
    read = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in read["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_their_cells_are_python(path):
    read = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 3
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert cells(path, "markdown")[0].startswith("# ")
    for source in cells(path):
        ast.parse(source)


def test_the_loop_of_the_page_is_that_of_the_notebook():
    page = (ROOT / "docs" / "loop.md").read_text(encoding="utf-8")
    shown = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert len(shown[1].strip().splitlines()) <= 30
    begin, loop = cells(ROOT / "notebooks" / "own_loop.ipynb")[:2]
    assert shown[1].strip() == f"{begin}\n\n{loop}"


@pytest.fixture
def executing(monkeypatch, tmp_path) -> Iterator[Any]:
    """`notebooks.execute` without a kernel."""
    client = SimpleNamespace(execute=lambda: None)
    written = SimpleNamespace(read=lambda path, as_version: "", write=lambda *args: None)
    monkeypatch.setitem(sys.modules, "nbformat", written)
    monkeypatch.setitem(sys.modules, "nbclient", SimpleNamespace(NotebookClient=lambda *args, **options: client))
    module = importlib.import_module("notebooks.execute")
    monkeypatch.setattr(module, "EXECUTED", tmp_path)
    monkeypatch.setattr(module, "download", lambda path, place: "")
    yield module
    del sys.modules["notebooks.execute"]


def test_a_notebook_that_does_not_exist_is_an_error_that_names_the_others(executing):
    with pytest.raises(SystemExit, match=r"^no notebook is called own_lop; allowed: attacked_reward, first_win, own_"):
        executing.main(["own_loop", "own_lop"])


def test_a_notebook_that_cannot_download_fails_the_command_after_the_others_have_run(executing, monkeypatch, capsys):
    executing.main([])
    assert len(capsys.readouterr().out.splitlines()) == len(NOTEBOOKS)
    monkeypatch.setattr(executing, "download", lambda path, place: "no network" if path.stem == "first_win" else "")
    with pytest.raises(SystemExit, match=r"^did not run: first_win$"):
        executing.main([])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(NOTEBOOKS)
    assert [line.split() for line in said if "skipped" in line] == [["first_win", "skipped:", "no", "network"]]


@pytest.mark.slow
def test_a_notebook_whose_package_cannot_be_had_is_skipped_with_the_reason(tmp_path):
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"metadata": {"posttrain": {"downloads": ["no such package"]}}, "cells": []}))
    assert download(path, tmp_path).startswith("pip cannot download no such package: ERROR: Invalid requirement")
    assert download(ROOT / "notebooks" / "own_loop.ipynb", tmp_path) == ""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_as_a_script(path, tmp_path):
    if reason := download(path, tmp_path):
        pytest.skip(reason)
    (tmp_path / "script.py").write_text("\n\n".join(cells(path)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
