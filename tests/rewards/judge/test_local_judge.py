"""A judge in this process: a model folder, with its own chat template, or the current policy."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.episodes.families import tokenizer_of
from tests.rewards.rollouts import completion, prompt
from tests.tiny import tiny_model
from transformers import AutoModelForCausalLM

from posttrain.config import JudgeConfig, ModelConfig
from posttrain.engines.local import LocalSampler
from posttrain.errors import ConfigError, ModelError
from posttrain.models.load import LoadedModel, load_model
from posttrain.rewards import Reward, Scores, build_rewards
from posttrain.rewards.judge import judge_metrics
from posttrain.rewards.judge.local import LocalJudge
from posttrain.rewards.judge.records import Conversation
from posttrain.rewards.judge.templates import as_data

ROOM = {"max_position_embeddings": 2048}
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("judge") / "model", characters=CHARACTERS, **ROOM)


@pytest.fixture
def loaded(folder) -> LoadedModel:
    return load_model(ModelConfig(path=str(folder), device="cpu"))


def sampler_of(loaded: LoadedModel) -> LocalSampler:
    return LocalSampler(loaded.model, loaded.tokenizer, loaded.eos_ids, shared=True)


def score(texts: list[str], *, policy: LocalSampler | None = None, **settings: Any) -> Scores:
    judge = {"mode": "score", "max_tokens": 6, **settings}
    with build_rewards([Reward(judge=judge)], device="cpu") as rewards:
        if policy is not None:
            rewards.bind(policy, {})
        rewards.check([prompt(0)])
        return rewards.score([prompt(0)], [[completion(text) for text in texts]])


def said(scores: Scores) -> list[str]:
    return [reply.text for judgement in scores.judgements for reply in judgement.replies]


def test_a_model_folder_answers_and_a_random_one_gives_no_verdict(folder):
    scores = score(["one", "two"], model=str(folder))
    assert all(said(scores))
    assert scores.scored_PG == [[False, False]]
    assert "(finish_reason length): raise judge.max_tokens" in scores.failures[0].message
    assert float(judge_metrics(scores.judgements)["judge/unparsable"]) == 1.0


def test_what_a_model_folder_said_is_kept_by_its_weights(folder, tmp_path):
    first, second = score(["one"], model=str(folder)), score(["one"], model=str(folder))
    assert [reply.cached for judgement in second.judgements for reply in judgement.replies] == [True]
    assert said(first) == said(second)
    other = tiny_model(tmp_path / "other", characters=CHARACTERS, seed=1, **ROOM)
    assert not any(r.cached for judgement in score(["one"], model=str(other)).judgements for r in judgement.replies)


@pytest.mark.parametrize("change", ["rope", "template", "end"])
def test_the_same_weights_used_in_another_way_are_another_judge(folder, tmp_path, change):
    """With other positions, another template or other end tokens, the first judge's replies are not reused."""
    first = score(["one"], model=str(folder))
    other = shutil.copytree(folder, tmp_path / "other")
    if change == "rope":
        edit(other / "config.json", lambda config: config["rope_parameters"].update(rope_theta=5.0))
    elif change == "template":
        (other / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}!")
    else:
        edit(other / "generation_config.json", lambda config: config.update(eos_token_id=[2, 40]))
    second = score(["one"], model=str(other))
    assert not any(reply.cached for judgement in second.judgements for reply in judgement.replies)
    assert said(first)


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.slow
def test_questions_together_and_one_by_one_get_the_same_answers(folder):
    together, single = (said(score(["a", "bb", "ccc"], model=str(folder), cache=False, concurrency=n)) for n in (8, 1))
    assert together == single


def test_with_a_temperature_samples_differ_and_can_be_repeated(folder):
    settings = {"model": str(folder), "cache": False, "temperature": 1.0, "samples": 3}
    once, again = said(score(["one"], **settings)), said(score(["one"], **settings))
    assert once == again
    assert len(set(once)) == 3


def test_the_policy_judges_with_the_weights_that_it_has_now(loaded):
    """After a change of weights the same question gets a new answer: replies of a policy are not kept."""
    sampler = sampler_of(loaded)
    before = said(score(["one"], model="policy", policy=sampler))
    assert said(score(["one"], model="policy", policy=sampler)) == before
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    assert said(score(["one"], model="policy", policy=sampler)) != before


def test_a_policy_that_says_verdicts_gives_scores(loaded, monkeypatch):
    """The policy's sampler gets the rendered question; its reply is parsed like the reply of any other judge."""
    sampler, asked = sampler_of(loaded), []

    def generate(prompts, sampling, *, group_size, seed):
        asked.extend(prompts)
        return [[completion(f"Score: {n + 2}")] for n, _ in enumerate(prompts)]

    monkeypatch.setattr(sampler, "generate", generate)
    assert score(["one", "two"], model="policy", policy=sampler).rewards_PG == [[0.4, 0.6]]
    assert len({question.index for question in asked}) == 2


def test_a_policy_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r"judge.model = policy, but no policy is being trained or evaluated"):
        score(["one"], model="policy")


def test_a_folder_that_is_no_model_is_named_as_the_judge(tmp_path):
    with pytest.raises(ModelError, match=r"judge\.model"):
        score(["one"], model=str(tmp_path / "nothing"))


def test_a_question_that_does_not_fit_is_unscored_and_the_others_are_answered(folder):
    scores = score(["x" * 3000, "y"], model=str(folder))
    assert "the question has" in scores.failures[0].message
    assert "too many for the judge's context of 2048" in scores.failures[0].message
    assert len(said(scores)) == 2
    assert said(scores)[1]


def test_the_chat_template_is_that_of_the_judge(loaded, monkeypatch):
    loaded.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    sampler, asked = sampler_of(loaded), []
    monkeypatch.setattr(sampler, "generate", lambda prompts, *_, **__: asked.extend(prompts) or [[completion("Hm")]])
    score(["one"], model="policy", policy=sampler)
    first, second = (loaded.tokenizer.decode(question.ids) for question in asked)
    assert first.startswith("[user]Grade an answer")
    assert first.endswith("Score: N[assistant]")
    assert "[assistant]Hm[user]Your reply does not end with a score." in second


def test_the_weights_of_a_judge_are_not_trained(folder):
    with build_rewards([Reward(judge={"model": str(folder), "mode": "score"})], device="cpu") as rewards:
        rewards.check([prompt(0)])
        (component,) = rewards.components
        assert component.judge is not None
        model = component.judge.backend.sampler.model  # type: ignore[union-attr]
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert isinstance(model, AutoModelForCausalLM.from_pretrained(folder).__class__)


def test_no_special_token_of_the_judges_tokenizer_stands_in_an_answer():
    """Also those that its settings do not name: smollm2 has 17 special tokens, and three of them have a role."""
    tokenizer = tokenizer_of("smollm2")
    judge = LocalJudge(JudgeConfig(model="policy", mode="score"))
    judge.bind(SimpleNamespace(tokenizer=tokenizer), {})  # type: ignore[arg-type]
    special = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    shown = as_data("a".join(special), judge.control)
    assert not set(special.values()) & set(tokenizer(shown).input_ids)


def test_two_threads_take_turns_in_decoding_with_one_judge(loaded):
    """Decoding changes the model while it lasts, and an asynchronous run scores and evaluates in two threads."""
    judge = LocalJudge(JudgeConfig(model="policy", mode="score", max_tokens=6))
    sampler, inside, together = sampler_of(loaded), [], []
    decode = sampler.generate

    def watched(*prompts: Any, **how: Any) -> Any:
        inside.append(None)
        together.append(len(inside))
        time.sleep(0.05)
        found = decode(*prompts, **how)
        inside.pop()
        return found

    sampler.generate = watched  # type: ignore[method-assign]
    judge.bind(sampler, {})
    question = Conversation(messages=({"role": "user", "content": "which?"},))
    with ThreadPoolExecutor(2) as threads:
        replies = list(threads.map(lambda _: judge.answer([question], lambda place, reply: None), range(4)))
    assert together == [1] * 4
    assert len({reply.text for (reply,) in replies}) == 1
