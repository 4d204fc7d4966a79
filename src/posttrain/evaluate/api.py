"""`evaluate`: any model on any held-out data with any rewards, or a run folder with its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.config import (
    AgentConfig,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ModelConfig,
    RolloutConfig,
    SamplingConfig,
    in_folder,
    load_config,
)
from posttrain.config.urls import is_url
from posttrain.config.values import Natural, Part, Share
from posttrain.data.given import Data, given_rows, where_the_run_is
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.read import Row
from posttrain.data.split import read_split
from posttrain.data.unknown import unknown_text
from posttrain.engines import make_sampler
from posttrain.engines.sampler import Answers
from posttrain.episodes.acting import Acting
from posttrain.episodes.scene import Scene
from posttrain.errors import ConfigError, DataError, RewardError
from posttrain.evaluate.evaluation import Evaluation
from posttrain.evaluate.heldout import evaluate_sampler
from posttrain.evaluate.measure import EVALUATION_SEED
from posttrain.evaluate.rollout import RolloutArgument, rollout_of, tell
from posttrain.evaluate.trained import baseline_of_run, run_in, trained_model
from posttrain.evaluate.votes import Extract
from posttrain.experience.deliveries import PROBE_PROMPTS
from posttrain.experience.servers import room_for_judges
from posttrain.experience.serving import Serving, serving
from posttrain.models.compute import FILE as COMPUTE
from posttrain.models.compute import Compute, choose_compute
from posttrain.models.given import model_and_tokenizer
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import evaluating
from posttrain.models.named import resolve_model_path
from posttrain.rewards import RewardSet, build_rewards
from posttrain.store.fetching import folder_to_read
from posttrain.types import Prompt

ModelAndTokenizer = tuple[PreTrainedModel, PreTrainedTokenizerBase]
"""Model and tokenizer as transformers loads them; the model's weights are float32."""
RewardArgument = Any
"""The name of a built-in reward, "path.py:function", a callable, a `Reward` or a mapping of its fields; or a list."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with its data, rewards and settings, before the arguments of the call replace some of them."""

    model: ModelConfig
    data: DataConfig | None = None
    rows: Sequence[Row] | None = None
    rewards: Sequence[RewardArgument] = ()
    check: Sequence[RewardArgument] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    tools: Sequence[str] = ()
    agent: AgentConfig = field(default_factory=AgentConfig)
    seed: int = 0
    max_unscored: float = 0.2
    publish_tolerance: float | None = None
    folder: Path | None = None
    """Folder of the config; paths of rewards are relative to it."""
    learned_from_given: bool = False
    """Is this a run on given answers, not on sampled ones?"""


class _Own(Part):
    """Arguments of `evaluate` that no section of a config describes."""

    seed: Natural = 0
    max_unscored: Share = 0.2


ARGUMENTS = {
    r"\bsamples(?= =)": "k",
    r"\bprompts(?= =)": "max_prompts",
    r"\bdata\.(prompt|answer|system_prompt)\b": r"\1",
    r"\bguards\.max_unscored\b": "max_unscored",
}
"""Keys of a config in the words of an error -> the arguments of `evaluate` that set them."""


@contextmanager
def _naming_arguments() -> Iterator[None]:
    """Let errors name the arguments of `evaluate` instead of the keys of a config."""
    try:
        yield
    except (ConfigError, DataError, RewardError) as error:
        told = named = {name: getattr(error, name) for name in ("given", "allowed", "fix")}
        for key, argument in ARGUMENTS.items():
            named = {name: re.sub(key, argument, text) for name, text in named.items()}
        if named == told:
            raise
        raise type(error)(**named) from None


@_naming_arguments()
def evaluate(
    model: str | PathLike[str] | ModelConfig | LoadedModel | ModelAndTokenizer,
    data: Data | None = None,
    rewards: RewardArgument | Sequence[RewardArgument] | None = None,
    *,
    k: int | None = None,
    check: RewardArgument | Sequence[RewardArgument] | None = None,
    temperature: float | None = None,
    max_prompts: int | None = None,
    max_completion_length: int | None = None,
    prompt: str | None = None,
    answer: str | None = None,
    system_prompt: str | None = None,
    confidence: float | None = None,
    seed: int | None = None,
    max_unscored: float | None = None,
    extract: Extract | None = None,
    rollout: RolloutArgument | None = None,
) -> Evaluation:
    """Answer held-out prompts once greedily and `k` times sampled, and score the answers.

    `model` is a model folder or name, `(model, tokenizer)` as transformers loads them, or a run or its folder. For a
    run, its newest checkpoint is evaluated, and arguments that you leave out come from the run. Otherwise `data` and
    `rewards` are needed, and the defaults come from the config (`evaluation.samples` for `k`, and so on).

        evaluate("runs/demo")                # compared with the run's measurement before training
        evaluate("Qwen/Qwen3-0.6B", "gsm8k_test.jsonl", "math", k=8)
        evaluate(folder, [{"prompt": "2 + 2 =", "answer": "4"}], my_reward, rollout={"engine": "vllm"})

    `rollout` selects the engine that answers, like the section `rollout` of a config: this process, or servers. Servers
    prove their weights as in a run. A run that sampled with servers is evaluated with servers. A run that learned from
    given answers is measured by `evaluate_given`. Raises `ConfigError`, `DataError`, `ModelError` or `EngineError`.
    """
    model = _named_or_loaded(model)
    own = _subject(model)
    given = {
        "samples": k,
        "temperature": temperature,
        "prompts": max_prompts,
        "max_completion_length": max_completion_length,
        "confidence": confidence,
    }
    subject = replace(
        own,
        data=_data_config(own.data, data, prompt, answer, system_prompt),
        rows=own.rows if data is None else given_rows(data),
        rewards=_list(rewards) or own.rewards,
        check=_list(check) or own.check,
        evaluation=EvaluationConfig(**{**own.evaluation.model_dump(), **_present(given)}),
        rollout=rollout_of(own.rollout, rollout),
        **_Own(**_present({"seed": seed, "max_unscored": max_unscored})).model_dump(exclude_unset=True),
    )
    _check(subject, extract)
    own_model = isinstance(model, LoadedModel)
    loaded = model if isinstance(model, LoadedModel) else _computing(load_model(subject.model), subject)
    found = _measure(subject, loaded, extract, own_model=own_model)
    changed = (data, rewards, check, max_completion_length, prompt, answer, system_prompt, extract)
    is_as_in_run = all(one is None for one in changed)
    return baseline_of_run(subject.folder, found) if subject.folder and is_as_in_run else found


def _computing(loaded: LoadedModel, subject: Subject) -> LoadedModel:
    """Return the model with the run's choice of how to compute, if its folder has one that works on this machine."""
    saved = None if subject.folder is None else Compute.read(subject.folder / COMPUTE)
    chosen = choose_compute(
        loaded.model, subject.model.precision, saved=saved, decodes=subject.rollout.engine == "local"
    )
    return replace(loaded, compute=chosen)


def _named_or_loaded(model: Any) -> str | PathLike[str] | ModelConfig | LoadedModel:
    is_known = isinstance(model, str | PathLike | ModelConfig | LoadedModel)
    return model if is_known else LoadedModel.of(*model_and_tokenizer(model))


def _check(subject: Subject, extract: Any) -> None:
    """Raise ConfigError, before any model is loaded, for missing data, a run without rewards if none are given, and an
    `extract` that is no function."""
    if subject.data is None or subject.rows is None:
        raise ConfigError(
            given=f"no data to evaluate {subject.model.path} on",
            allowed="data with prompts; only a run folder has its own",
            fix="Give held-out data: evaluate(model, data, rewards), or --data FILE.",
        )
    if subject.learned_from_given and not subject.rewards:
        raise ConfigError(
            given=f"{subject.folder}, a run without rewards, which learned from given answers",
            allowed="a run with rewards, or rewards for its answers",
            fix="Measure it as in the run, with evaluate_given(run), or give a reward: "
            'evaluate(run, data, "exact_match").',
        )
    if extract is not None and not callable(extract):
        raise ConfigError(
            given=f"extract is of type {type(extract).__name__}",
            allowed="a function from the text of an answer to what is voted on, or None",
            fix="For example extract=lambda text: text.split()[-1].",
        )


def _measure(subject: Subject, loaded: LoadedModel, extract: Extract | None, *, own_model: bool) -> Evaluation:
    """Answer the prompts and score the answers. `own_model`: the model belongs to the caller and is not changed."""
    settings, served = subject.evaluation, subject.rollout.engine != "local"
    sampler = make_sampler(loaded, "shared" if own_model or served else "taken")
    length = settings.max_completion_length or subject.sampling.max_completion_length
    assert subject.data is not None
    assert subject.rows is not None
    with ExitStack() as stack:
        if own_model:
            stack.enter_context(evaluating(loaded.model))
        acting = Acting.of(subject, stack)
        renderer = Renderer.of(subject.data, loaded.tokenizer, subject.model.chat_template_kwargs)
        renderer = renderer if acting is None else replace(renderer, tools=acting.schemas)
        prompts = _prompts(subject.rows, subject.data, loaded, renderer, length)[: settings.prompts]
        _tell_of_unknown_text(prompts, loaded)
        rewards = stack.enter_context(_reward_set(subject.rewards, subject.folder))
        check = stack.enter_context(_reward_set(subject.check, subject.folder)) if subject.check else None
        scorers = [scorer for scorer in (rewards, check) if scorer is not None]
        for scorer in scorers:
            scorer.bind(sampler, subject.model.chat_template_kwargs)
            scorer.check(prompts)
        answers: Answers = sampler
        if acting is not None and not served:
            answers = acting.around(sampler, renderer, loaded.eos_ids)
        if served:
            behind = length if acting is None else acting.limits.max_length or loaded.context_length or length
            longest = min(max(len(prompt.ids) for prompt in prompts) + behind, loaded.context_length or sys.maxsize)
            judges = [one.judge.settings for scorer in scorers for one in scorer.components if one.judge is not None]
            longest = room_for_judges(longest, judges, loaded)
            scene = None if acting is None else acting.scene(renderer, loaded.eos_ids, longest)
            answers = servers = stack.enter_context(_served(subject, loaded, prompts, longest, scene))
            for scorer in scorers:
                scorer.bind(servers.judge, subject.model.chat_template_kwargs)
        return evaluate_sampler(
            answers,
            prompts,
            rewards,
            sampling=subject.sampling,
            samples=settings.samples,
            temperature=settings.temperature,
            max_completion_length=length,
            confidence=settings.confidence,
            seed=subject.seed,
            check=check,
            extract=extract,
            max_unscored=subject.max_unscored,
        )


def _served(
    subject: Subject, loaded: LoadedModel, prompts: Sequence[Prompt], longest: int, scene: Scene | None
) -> AbstractContextManager[Serving]:
    """Start servers for these prompts. `longest` is the maximum tokens of a row; `scene` is for several turns."""
    return serving(
        subject.rollout,
        subject.sampling.model_copy(update={"temperature": subject.evaluation.temperature}),
        loaded,
        subject.model,
        longest=longest,
        probe=[prompt.ids for prompt in prompts[:PROBE_PROMPTS]],
        tolerance=subject.publish_tolerance,
        say=tell,
        scene=scene,
    )


def _subject(model: str | PathLike[str] | ModelConfig | LoadedModel) -> Subject:
    if isinstance(model, LoadedModel):
        return Subject(model=ModelConfig(path=str(model.model.name_or_path) or "model"))
    if isinstance(model, ModelConfig):
        return Subject(model=resolve_model_path(model, 0))
    model = folder_to_read(model, checkpoints=True) if is_url(model) else model
    if (run := run_in(Path(model))) is not None:
        return _run_subject(run)
    return Subject(model=resolve_model_path(ModelConfig(path=os.fspath(model)), 0))


def _run_subject(folder: Path) -> Subject:
    """Return the newest checkpoint of a run, with the data, rewards and settings of the run's own evaluations."""
    config = load_config(folder / "config.yaml").config
    data = where_the_run_is(config.data, folder)
    return Subject(
        model=trained_model(folder, config),
        data=data,
        rows=read_split(data, config.seed).heldout,
        rewards=in_folder(config.rewards or config.check, folder),
        check=in_folder(config.check, folder) if config.rewards else (),
        sampling=config.sampling,
        evaluation=config.evaluation,
        rollout=config.rollout,
        environment=config.environment,
        tools=config.tools,
        agent=config.agent,
        publish_tolerance=config.guards.publish_tolerance,
        seed=config.seed + EVALUATION_SEED,
        max_unscored=config.guards.max_unscored,
        folder=folder,
        learned_from_given=config.sampled_pairs is None and config.algorithm.build().data_kind != "prompts",
    )


def _data_config(
    own: DataConfig | None, data: Data | None, prompt: str | None, answer: str | None, system_prompt: str | None
) -> DataConfig | None:
    """Return the settings for rendering prompts. Other data has other columns, so only the chat settings are kept."""
    if own is None and data is None:
        return None
    if data is None:
        base = own
    else:
        name = os.fspath(data) if isinstance(data, str | PathLike) else "rows"
        kept = {} if own is None else {"chat": own.chat, "system_prompt": own.system_prompt}
        base = DataConfig(train=name, **kept)
    assert base is not None
    given = {"prompt": prompt, "answer": answer, "system_prompt": system_prompt}
    return DataConfig(**{**base.model_dump(), **_present(given)})


def _tell_of_unknown_text(prompts: Sequence[Prompt], loaded: LoadedModel) -> None:
    """Say on stderr which prompts and gold answers hold text that the tokenizer cannot write."""
    for found in unknown_text(prompts, (), loaded.tokenizer, loaded.eos_ids).findings():
        tell(f"held-out data: {found.message}. {found.fix}")


def _prompts(
    rows: Sequence[Row], config: DataConfig, loaded: LoadedModel, renderer: Renderer, max_completion_length: int
) -> Sequence[Prompt]:
    if not rows:
        raise DataError(
            given="no held-out prompts: the data is empty, or the run held nothing out",
            allowed="at least one",
            fix="Give held-out data: evaluate(model, data), or --data FILE.",
        )
    room = (loaded.context_length or sys.maxsize) - max_completion_length
    if room < 1:
        raise ConfigError(
            given=f"max_completion_length = {max_completion_length}, but the context is {loaded.context_length} tokens"
            f"{loaded.context_reason}",
            allowed="less than the context, with room for the prompts",
            fix=f"Set max_completion_length = {(loaded.context_length or 2) // 2}.",
        )
    return render_prompts(rows, config, renderer, max_prompt_length=room, what=loaded.named("held-out data")).prompts


def _reward_set(rewards: Sequence[RewardArgument], folder: Path | None) -> RewardSet:
    if not rewards:
        raise ConfigError(
            given="no reward to judge the answers by",
            allowed="at least one; a run that was trained with rewards has its own",
            fix='Give one: evaluate(model, data, "exact_match"), or --reward exact_match.',
        )
    return build_rewards(rewards, folder=folder)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _present(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
