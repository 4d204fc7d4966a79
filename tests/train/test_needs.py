"""An algorithm gets everything that it declares as needed, and nothing else is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as parquet
import pytest
import torch
from tests.tiny import CHARACTERS, tiny_model, write_prompts
from torch import Tensor

import posttrain
from posttrain.algorithms import ALGORITHMS, GRPO
from posttrain.algorithms.base import Need
from posttrain.algorithms.settings import settings
from posttrain.config import check, load_config, to_yaml
from posttrain.errors import ConfigError, GuardStop, ModelError
from posttrain.experience.feed import StepData
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.types import Batch, Experience, count_totals

REWARDS = """
def vowels(prompt, completion, **row):
    return sum(letter in "aeiou" for letter in completion) / 8

def rarely(prompt, completion, **row):
    return float("a" in completion)

def never(prompt, completion, **row):
    return 0.0
"""


@settings
class Watching(GRPO):
    """Keeps the experience and the batches that it receives."""

    key: ClassVar[str] = "watching"
    given: ClassVar[list[Experience]] = []
    seen: ClassVar[list[Batch]] = []

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.given.append(experience)
        return super().advantages(experience, state)

    def prepare(self, batch: Batch) -> Batch:
        self.seen.append(batch)
        return super().prepare(batch)


@settings
class Looking(Watching):
    key: ClassVar[str] = "looking"

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"current"}


@settings
class Spread(Watching):
    key: ClassVar[str] = "spread"

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"old_for_advantages", "squared_probs"}


@settings
class Greedy(Watching):
    key: ClassVar[str] = "greedy"

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"greedy_reward"}


@settings
class Choosy(Watching):
    key: ClassVar[str] = "choosy"

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"signal"}


@settings
class Lengthening(Watching):
    """Learns without a reward: a longer completion is better."""

    key: ClassVar[str] = "lengthening"
    learns_from_rewards: ClassVar[bool] = False

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        super().advantages(experience, state)
        return experience.broadcast(torch.ones_like(experience.rewards_PG))


@settings
class Taught(Lengthening):
    key: ClassVar[str] = "taught"

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"teacher"}


@settings
class Pulled(Watching):
    key: ClassVar[str] = "pulled"

    ptx_coef: float = 0.5

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"auxiliary"}

    @property
    def auxiliary_coef(self) -> float:
        return self.ptx_coef


@pytest.fixture(autouse=True)
def registered(monkeypatch) -> None:
    for algorithm in (Watching, Looking, Spread, Greedy, Choosy, Lengthening, Taught, Pulled):
        monkeypatch.setitem(ALGORITHMS, algorithm.key, algorithm)  # pyright: ignore[reportArgumentType]
    Watching.seen.clear()
    Watching.given.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("needs")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture
def build(folder, tmp_path) -> Iterator[Callable[..., Run]]:
    """`build(algorithm, settings)`: a run before its first step."""
    with ExitStack() as resources:

        def built(algorithm: str, settings: Mapping[str, Any] | None = None, output: str = "run") -> Run:
            config = {
                "model": {"path": str(folder / "model"), "device": "cpu"},
                "algorithm": algorithm,
                "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
                "rewards": [{"name": "repetition", "settings": {"n": 1}}],
                "sampling": {"group_size": 4, "max_completion_length": 6},
                "train": {"steps": 3, "prompts_per_step": 2, "learning_rate": 0.05},
                "guards": {"max_truncated": 1.0},
            }
            resolved = load_config(config, settings or {})
            store = resources.enter_context(RunStore.create(tmp_path / output, to_yaml(resolved)))
            return set_up(resolved, store, TerminalView(quiet=True), resources)

        yield built


def reduced(data: StepData) -> dict[str, float]:
    """The metrics of the sampled rows."""
    return {name: float(metric.item()) for name, metric in data.metrics.items()}


def step(run: Run, number: int = 1) -> Batch:
    batch, _ = train_step(run.trainer, run.feed.take(number, version=number - 1).experience, number)
    return batch


@contextmanager
def counted_passes(run: Run) -> Iterator[list[str]]:
    """The forward passes of the policy, in order: "gradient" or "plain"."""
    passes: list[str] = []

    def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        passes.append("gradient" if torch.is_grad_enabled() else "plain")

    body = (
        run.trainer.loaded.model.get_base_model()
        if hasattr(run.trainer.loaded.model, "get_base_model")
        else run.trainer.loaded.model
    )
    handle = body.model.register_forward_pre_hook(note, with_kwargs=True)  # type: ignore[union-attr]
    yield passes
    handle.remove()


def passes_of_a_step(run: Run) -> list[str]:
    experience = run.feed.take(1, version=0).experience
    train_step(run.trainer, experience, 1)  # the first pass of a model also decides how the model is run
    with counted_passes(run) as passes:
        train_step(run.trainer, experience, 2)
    return passes


# --- log-probabilities of the policy ----------------------------------------------------------------------------------


def test_exactly_on_policy_there_is_one_pass_per_update(build):
    assert passes_of_a_step(build("grpo")) == ["gradient"]


def test_the_old_pass_comes_once_for_all_updates_of_a_batch(build):
    run = build("grpo", {"train.minibatches": 2, "train.epochs": 2})
    assert passes_of_a_step(run) == ["plain", *["gradient"] * 4]


@pytest.mark.parametrize(("kl_coef", "passes"), [(0.0, ["gradient"]), (0.1, ["plain", "gradient"])])
def test_the_reference_pass_is_skipped_when_its_weight_is_0(build, kl_coef, passes):
    """With adapters, the reference uses the same modules, so its passes are counted, too."""
    run = build("grpo", {"algorithm.kl_coef": kl_coef, "lora": {"rank": 2}})
    assert passes_of_a_step(run) == passes


def test_the_present_policy_is_looked_at_before_each_update_but_never_twice(build):
    """One update needs one pass for it. With several updates, the old pass serves the first of them."""
    assert passes_of_a_step(build("looking")) == ["plain", "gradient"]


def test_the_old_pass_is_the_look_before_the_first_update(build):
    run = build("looking", {"train.epochs": 3})
    assert passes_of_a_step(run) == ["plain", "gradient", *["plain", "gradient"] * 2]


def test_what_is_seen_before_an_update_is_the_policy_of_that_moment(build):
    batch = step(build("looking", {"train.epochs": 2}))
    first, second = Looking.seen
    mask_BT = batch.completion_mask_BT
    assert first.current_logprobs_BT is not None
    assert second.current_logprobs_BT is not None
    torch.testing.assert_close(first.current_logprobs_BT[mask_BT], first.sampling_logprobs_BT[mask_BT])
    assert torch.equal(first.current_logprobs_BT, first.old_logprobs_BT)
    assert (second.current_logprobs_BT - first.current_logprobs_BT)[mask_BT].abs().max() > 1e-3
    assert torch.equal(second.old_logprobs_BT, first.old_logprobs_BT), "the anchor of the ratio stays"


# --- rewards ----------------------------------------------------------------------------------------------------------


def test_the_components_of_the_reward_come_with_their_weights(build, folder):
    rewards = [
        {"function": f"{folder / 'rewards.py'}:{name}", "weight": weight}
        for name, weight in (("vowels", 1), ("rarely", -0.5))
    ]
    step(build("watching", {"rewards": rewards}))
    (given,) = Watching.given
    assert given.reward_weights_K is not None
    assert given.reward_weights_K.tolist() == [1.0, -0.5]
    assert given.rewards_KPG is not None
    sums_PG = (given.rewards_KPG * given.reward_weights_K[:, None, None]).sum(dim=0)
    torch.testing.assert_close(sums_PG, given.rewards_PG)


def test_behind_a_shut_gate_a_component_is_0_for_algorithms_and_itself_in_the_metrics(build, folder):
    vowels = f"{folder / 'rewards.py'}:vowels"
    gate = {"label": "vowels", "at_least": 0.25}  # two of the letters
    run = build(
        "watching",
        {"rewards": [{"function": vowels, "label": "some", "gate": gate}, {"function": vowels, "weight": 0}]},
    )
    fed = run.feed.take(1, version=0)
    own_PG = torch.tensor([group.scores.parts["some"][0] for group in fed.groups])
    is_open_PG = own_PG >= 0.25
    assert is_open_PG.any()
    assert own_PG[~is_open_PG].any()
    torch.testing.assert_close(fed.experience.rewards_KPG[0], torch.where(is_open_PG, own_PG, 0.0))
    torch.testing.assert_close(fed.experience.rewards_PG, fed.experience.rewards_KPG[0])
    metrics = reduced(fed)
    assert metrics["rewards/some/gated"] == pytest.approx(1 - is_open_PG.double().mean().item())
    assert metrics["rewards/some/mean"] == pytest.approx(own_PG.double().mean().item())


def test_the_greedy_answer_of_each_prompt_is_scored_by_the_same_rewards(build, folder):
    run = build("greedy", {"rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}]})
    fed = run.feed.take(1, version=0)
    assert [len(group.completions) for group in fed.greedy] == [1, 1]
    assert [group.prompt for group in fed.greedy] == [group.prompt for group in fed.groups]
    expected = [sum(letter in "aeiou" for letter in group.completions[0].text) / 8 for group in fed.greedy]
    assert fed.experience.greedy_rewards_P.tolist() == pytest.approx(expected)
    metrics = reduced(fed)
    assert metrics["reward/greedy"] == pytest.approx(sum(expected) / 2)
    assert metrics["reward/greedy_unscored"] == 0


def test_greedy_answers_are_those_of_the_policy_and_are_counted(build):
    run = build("greedy")
    greedy = run.feed.take(1, version=0).greedy
    again = run.feed.take(1, version=0)
    assert [group.completions[0].ids for group in again.greedy] == [group.completions[0].ids for group in greedy]
    sampled_tokens, greedy_tokens = (sum(one.num_tokens for one in groups) for groups in (again.groups, greedy))
    assert again.num_tokens == sampled_tokens + greedy_tokens > greedy_tokens > 0


def test_a_greedy_answer_without_a_reward_is_nan_and_counted(build, folder, tmp_path):
    (tmp_path / "odd.py").write_text("def odd(prompt, completion, **row):\n    raise ValueError('no')\n")
    reward = {"function": f"{tmp_path / 'odd.py'}:odd"}
    run = build("greedy", {"rewards": [reward]})
    fed = run.feed.take(1, version=0)
    assert fed.experience.greedy_rewards_P.isnan().all()
    assert reduced(fed)["reward/greedy_unscored"] == 1


def test_a_run_with_a_greedy_answer_per_prompt_records_it(folder, tmp_path, build):
    run = build("greedy")
    fed = run.feed.take(1, version=0)
    batch, _ = train_step(run.trainer, fed.experience, 1)
    run.step = 1
    run.record_step(fed, batch, {})
    rows = parquet.read_table(run.folder / "rollouts" / "step-000001.parquet").to_pylist()
    texts = [group.completions[0].text for group in fed.greedy]
    assert [row["greedy_completion"] for row in rows] == [text for text in texts for _ in range(4)]
    assert [row["greedy_reward"] for row in rows[::4]] == [group.scores.rewards_PG[0][0] for group in fed.greedy]


def test_on_file_the_advantage_of_a_row_leaves_out_the_tokens_that_are_too_old(folder, tmp_path, build):
    run = build("greedy")
    fed = run.feed.take(1, version=0)
    batch, _ = train_step(run.trainer, fed.experience, 1)
    mask_BT = fed.experience.completion_mask_BT.clone()
    mask_BT[:, mask_BT.any(dim=0).nonzero()[0]] = False  # the first token of each answer
    stale = replace(fed, experience=replace(fed.experience, completion_mask_BT=mask_BT))
    run.step = 1
    run.record_step(stale, replace(batch, advantages_BT=mask_BT * 2.0), {})
    rows = parquet.read_table(run.folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert {row["advantage"] for row in rows if len(row["completion_ids"]) > 1} == {2.0}


# --- signal -----------------------------------------------------------------------------------------------------------


def test_a_step_is_filled_with_groups_that_have_signal(build, folder):
    run = build("choosy", {"rewards": [{"function": f"{folder / 'rewards.py'}:rarely"}], "train.prompts_per_step": 4})
    fed = run.feed.take(1, version=0)
    rewards_PG = fed.experience.rewards_PG
    assert rewards_PG.shape == (4, 4)
    assert all(len(set(group)) == 2 for group in rewards_PG.tolist())
    metrics = reduced(fed)
    assert metrics["data/sampling_rounds"] > 1
    sampled = fed.sampled
    assert metrics["data/generated_per_trained"] == len(sampled) / 4
    assert metrics["frac_reward_zero_std"] > 0, "measured over all sampled groups"
    assert run.feed.take(1, version=0).sampled == sampled, "a resumed run draws the same rows again"


def test_what_was_discarded_is_on_file(build, folder):
    run = build("choosy", {"rewards": [{"function": f"{folder / 'rewards.py'}:rarely"}], "train.prompts_per_step": 4})
    fed = run.feed.take(1, version=0)
    batch, _ = train_step(run.trainer, fed.experience, 1)
    run.step = 1
    run.record_step(fed, batch, {})
    rows = parquet.read_table(run.folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert len(rows) == 4 * len(fed.sampled)
    assert [row["discarded"] for row in rows] == [False] * 16 + [True] * (len(rows) - 16)
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert {row["advantage"] for row in rows[16:]} == {None}


def test_data_without_any_signal_stops_the_run(build, folder):
    run = build("choosy", {"rewards": [{"function": f"{folder / 'rewards.py'}:never"}], "train.max_sampling_rounds": 3})
    with pytest.raises(GuardStop, match=r"0 of 6 groups in 3 rounds of sampling had a signal; .* 100% all wrong"):
        run.feed.take(1, version=0)


# --- no reward at all -------------------------------------------------------------------------------------------------


def test_an_algorithm_without_a_reward_trains_on_all_that_was_sampled(build):
    run = build("lengthening", {"rewards": []})
    fed = run.feed.take(1, version=0)
    assert run.guards.observe(1, fed) == []
    batch, _ = train_step(run.trainer, fed.experience, 1)
    assert torch.equal(batch.completion_mask_BT, fed.experience.completion_mask_BT)
    metrics = reduced(fed)
    assert "reward" not in metrics
    assert metrics["completions/mean_length"] > 0
    run.step = 1
    run.record_step(fed, batch, metrics)
    rows = parquet.read_table(run.folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert {(row["reward"], row["scored"]) for row in rows} == {(None, None)}


def test_rewards_that_are_only_watched_take_no_row_from_the_loss_and_stop_no_run(build, folder, tmp_path):
    (tmp_path / "odd.py").write_text("def odd(prompt, completion, **row):\n    raise ValueError('no')\n")
    run = build("lengthening", {"rewards": [{"function": f"{tmp_path / 'odd.py'}:odd"}]})
    fed = run.feed.take(1, version=0)
    assert run.guards.observe(1, fed) == []
    assert fed.experience.scored_PG.all()
    assert reduced(fed)["unscored_fraction"] == 1.0


def test_without_a_reward_the_check_measures(folder, tmp_path, build):
    config = {"rewards": [], "check": [{"name": "exact_match"}], "data.eval_fraction": 0.2, "evaluation.samples": 0}
    run = build("lengthening", config)
    (run.folder / "evaluations").mkdir()
    measured = run.measure(run.folder / "evaluations", "baseline")
    assert measured["baseline"]["rewards"].keys() == {"exact_match"}
    assert measured["baseline"]["greedy"]["accuracy"]["n"] == 4


def test_squared_probabilities_are_those_of_the_policy_at_the_temperature_of_sampling(build):
    run = build("spread", {"sampling.temperature": 0.7})
    step(run)
    given, mask_BT = Watching.given[0], Watching.given[0].completion_mask_BT
    assert given.squared_probs_BT is not None
    assert given.tokens is not None
    fresh = build("spread", {"sampling.temperature": 0.7}, "again")  # the weights before the update
    with torch.no_grad():
        logits_BTV = fresh.trainer.loaded.model(given.tokens.input_ids_BT).logits[:, :-1] / 0.7
    expected_BT = torch.nn.functional.pad(logits_BTV.softmax(dim=-1).square().sum(dim=-1), (1, 0))
    torch.testing.assert_close(given.squared_probs_BT[mask_BT], expected_BT[mask_BT], rtol=1e-4, atol=1e-6)
    assert (given.squared_probs_BT[~mask_BT] == 0).all()


# --- a teacher --------------------------------------------------------------------------------------------------------


def test_a_teacher_gives_its_log_probabilities_at_the_temperature_of_sampling(build, folder):
    """A teacher that is the policy itself gives each token the log-probability that the sampler reported."""
    settings = {"teacher": str(folder / "model"), "rewards": [], "sampling.temperature": 0.7}
    run = build("taught", settings)
    step(run)
    given, batch = Watching.given[0], Watching.seen[0]
    mask_BT = given.completion_mask_BT
    assert given.teacher_logprobs_BT is not None
    torch.testing.assert_close(given.teacher_logprobs_BT[mask_BT], given.sampling_logprobs_BT[mask_BT])
    assert torch.equal(batch.teacher_logprobs_BT, given.teacher_logprobs_BT)


def test_a_teacher_is_not_trained(build, folder):
    tiny_model(folder / "other", seed=1)
    run = build("taught", {"teacher": str(folder / "other"), "rewards": [], "train.learning_rate": 0.1})
    experience = run.feed.take(1, version=0).experience
    train_step(run.trainer, experience, 1)
    train_step(run.trainer, experience, 2)
    first, second = Watching.given
    assert torch.equal(first.teacher_logprobs_BT, second.teacher_logprobs_BT)
    mask_BT = experience.completion_mask_BT
    assert (first.teacher_logprobs_BT - experience.sampling_logprobs_BT)[mask_BT].abs().max() > 0.01


@pytest.mark.slow
def test_distillation_brings_the_student_to_its_teacher(folder, tmp_path):
    """The teacher is the student after ten steps of supervised fine-tuning."""
    prompts = [json.loads(line)["prompt"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    rows = [{"prompt": prompt, "completion": "aabb", "answer": "aabb"} for prompt in prompts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0.2, "prompt": "prompt"},
        "train": {"steps": 12, "prompts_per_step": 8, "learning_rate": 0.01},
        "sampling": {"max_completion_length": 6},
        "evaluation": {"writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
    }
    teacher = posttrain.train(settings, algorithm="sft", output=str(tmp_path / "teacher")).model_path
    distil = {"algorithm": "distillation", "teacher": str(teacher), "check": [{"name": "exact_match"}]}
    run = posttrain.train(settings, **distil, output=str(tmp_path / "student"))
    gaps = [row["teacher/reverse_kl"] for row in run.metrics]
    assert gaps[0] > 1
    assert gaps[-1] < 0.5 * gaps[0]
    assert run.evaluation["trained"]["greedy"] == posttrain.evaluate(run.folder).to_json()["greedy"]


def test_a_teacher_that_is_not_there_is_called_so(build):
    with pytest.raises(ModelError, match=r"^teacher\.path = './nowhere': there is no such folder"):
        build("taught", {"teacher": "./nowhere", "rewards": []})


def test_a_teacher_with_another_vocabulary_is_refused(build, folder):
    tiny_model(folder / "upside_down", characters=CHARACTERS[::-1])
    with pytest.raises(ConfigError, match=r"differs from the policy's: 40 and 40 tokens; .* is id 3 in one and id 39"):
        build("taught", {"teacher": str(folder / "upside_down"), "rewards": []})


def test_a_teacher_with_too_short_a_context_is_refused(build, folder):
    tiny_model(folder / "short", max_position_embeddings=16)
    settings = {"teacher": str(folder / "short"), "rewards": []}
    with pytest.raises(ConfigError, match=r"teacher's context is 16 .* have 64 together(.|\n)*max_prompt_length = 10"):
        build("taught", settings)
    assert build("taught", settings | {"data.max_prompt_length": 10}, output="fits").step == 0


def test_a_teacher_is_there_where_it_is_needed_and_only_there():
    given = {"model": "m", "data": {"train": "d"}, "train": {"steps": 1}, "rewards": [{"name": "math"}]}
    with pytest.raises(ConfigError, match="no teacher, but taught with these settings learns from one"):
        check(load_config({**given, "algorithm": "taught"}).config)
    with pytest.raises(ConfigError, match="teacher = m, but grpo with these settings never uses it"):
        check(load_config({**given, "algorithm": "grpo", "teacher": "m"}).config)
    check(load_config({**given, "algorithm": "taught", "teacher": "m"}).config)


# --- other data -------------------------------------------------------------------------------------------------------


@pytest.fixture
def other_data(tmp_path) -> dict[str, Any]:
    rows = [
        {"prompt": f"say {letter} ", "completion": letter * (1 + number % 3)} for number, letter in enumerate("abcde")
    ]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data.auxiliary": str(tmp_path / "other.jsonl"), "data.auxiliary_rows": 3}


def gradient(run: Run) -> Tensor:
    """The gradient of one update on the first experience, before clipping."""
    batch = run.trainer.advantages(run.feed.take(1, version=0).experience)
    seen: list[Tensor] = []

    def keep(step: int, on_norm: Any) -> dict[str, Any]:
        seen.append(
            torch.cat([p.grad.flatten() for p in run.trainer.optimizer.parameters if p.grad is not None]).clone()
        )
        return {}

    run.trainer.optimizer.step = keep  # pyright: ignore[reportAttributeAccessIssue]
    run.trainer.update(batch, count_totals(batch), 1)
    return seen[0]


def test_the_auxiliary_gradient_is_the_coefficient_times_that_of_supervised_training(build, other_data, tmp_path):
    alone = gradient(build("watching", output="a"))
    both = gradient(build("pulled", other_data | {"sampling.temperature": 1.0}, output="b"))
    supervised = {
        "rewards": [],
        "data.train": other_data["data.auxiliary"],
        "train.prompts_per_step": 3,
    }
    sft = gradient(build("sft", supervised, output="c"))
    torch.testing.assert_close(both - alone, 0.5 * sft, rtol=1e-3, atol=1e-6)


def test_the_split_into_micro_batches_does_not_change_the_auxiliary_gradient(build, other_data):
    whole = gradient(build("pulled", other_data, output="a"))
    split = gradient(build("pulled", other_data | {"train.tokens_per_microbatch": 9}, output="b"))
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-6)


def test_each_update_gets_its_own_auxiliary_rows_and_a_resumed_run_the_same(build, other_data):
    run = build("pulled", other_data | {"train.minibatches": 2})
    add = run.trainer.add_gradient
    losses = [float(add(step, number)["ptx/nll"]) for step in (1, 2) for number in (0, 1)]
    assert len(set(losses)) == 4
    assert losses == [float(add(step, number)["ptx/nll"]) for step in (1, 2) for number in (0, 1)]


def test_the_loss_on_auxiliary_data_is_a_metric_and_falls(build, other_data):
    run = build("pulled", other_data | {"data.auxiliary_rows": 5})
    fed = run.feed.take(1, version=0)
    found = [train_step(run.trainer, fed.experience, number)[1].reduce()["ptx/nll"] for number in range(1, 6)]
    assert found[-1] < found[0] - 0.1


def test_auxiliary_data_is_there_where_it_is_needed_and_only_there():
    given = {"model": "m", "train": {"steps": 1}, "rewards": [{"name": "math"}]}
    with pytest.raises(ConfigError, match=r"no data\.auxiliary, but pulled as configured adds a next-token loss"):
        check(load_config({**given, "algorithm": "pulled", "data": {"train": "d"}}).config)
    for name, value in {"auxiliary": "e", "auxiliary_rows": 3}.items():
        with pytest.raises(ConfigError, match=rf"data\.{name}, but grpo .* its own rows alone"):
            check(load_config({**given, "algorithm": "grpo", "data": {"train": "d", name: value}}).config)
    check(load_config({**given, "algorithm": "pulled", "data": {"train": "d", "auxiliary": "e"}}).config)
