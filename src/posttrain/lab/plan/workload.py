"""Derives a workload from a configuration: everything that a step holds and computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.config import REWARD_MODEL, RunConfig
from posttrain.errors import ConfigError, DoesNotFit
from posttrain.lab.plan.architecture import Architecture, architecture_of, read_architecture, size_classes
from posttrain.lab.plan.records import Adapters, CriticKind, DataKind, Engine, Turns, Workload
from posttrain.lab.plan.turns import UNTOLD, Answering, longest_trajectory, turns_of
from posttrain.models.compute import DTYPES, SMALL, Compute, dtype_name
from posttrain.ranks.environment import place_of_process
from posttrain.tasks.base import FORMS
from posttrain.tasks.catalogue import find_builtin
from posttrain.train.rounding import loses_typical

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ASSUMED_PROMPT = 256
"""Length of the longest prompt, in tokens, if neither the configuration nor the caller gives it."""
ASSUMED_ROW = 512
"""Length of the longest given row, prompt and answer together, if it is not given."""


def assumed_compute(config: RunConfig, parameters: int, device: str, *, bfloat16: bool = True) -> Compute:
    """Return the computation that a run usually chooses; on a CPU it measures at its start. The choice is bfloat16 if
    the device has it (`bfloat16`). On a CPU this holds only for models large enough to measure, which decode from a
    copy and compute float32 products with oneDNN, and only if bfloat16 does not lose the run's updates."""
    asked, on_cpu = config.model.precision, device == "cpu"
    measured = on_cpu and parameters >= SMALL
    chosen = bfloat16 and (not on_cpu or (measured and not loses_typical(config)))
    half = asked == "bfloat16" or (asked == "auto" and chosen)
    return Compute(
        dtype=DTYPES["bfloat16" if half else "float32"],
        matmul="onednn" if measured and not half else "plain",
        sampler="packed" if measured else "shared",
    )


def workload_of(
    config: RunConfig,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    computing: Compute | None = None,
    bfloat16: bool = True,
    lengths: RowLengths | None = None,
    answering: Answering = UNTOLD,
    **known: Any,
) -> Workload:
    """Return the workload of a configuration. `bfloat16`: the device has instructions for it. `answering`: inputs about
    tools and environments. `known`: fields of `Workload` that the caller sets.

    Lengths come from the data if known, otherwise from the limits of the configuration, otherwise they are assumed.
    Raises the errors of `read_architecture`.
    """
    algorithm, train, sampling = config.algorithm.build(), config.train, config.sampling
    architecture = known.pop("architecture", None) or model_architecture(config.model.path)
    computing = computing or assumed_compute(config, architecture.parameters, device, bfloat16=bfloat16)
    precision = dtype_name(computing.dtype)
    algorithm = algorithm.with_decided_correction(exact=config.samples_exactly(precision))
    kind: DataKind = "pairs" if config.sampled_pairs is not None else algorithm.data_kind
    online = kind == "prompts"
    turns = turns_of(config, answering) if online else None
    prompt, completion = _lengths(config, architecture, lengths, turns, online=online)
    fields: dict[str, Any] = {
        "algorithm": algorithm.key,
        "needs": algorithm.needs,
        "data_kind": kind,
        "old_pass": online and algorithm.needs_old_pass(updates=train.updates_per_batch, dropout=config.has_dropout),
        "prompts_per_step": train.prompts_per_step,
        "group_size": sampling.group_size if online else 1,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "mean_prompt_tokens": None if lengths is None else min(prompt, lengths.mean_prompt),
        "mean_completion_tokens": _mean_completion(completion, lengths, turns, online=online),
        "turns": turns,
        "minibatches": train.minibatches,
        "epochs": train.epochs,
        "tokens_per_microbatch": train.microbatch_tokens,
        "logprob_chunk_tokens": train.logprob_chunk_tokens,
        "max_batch_rows": sampling.rows_together,
        "steps": train.steps,
        "device": device,
        "precision": precision,
        "attention": config.model.attention,
        "packed_sampler": online and computing.sampler == "packed",
        "onednn": computing.matmul == "onednn",
        "gradient_checkpointing": train.gradient_checkpointing,
        "cpu_offload": train.cpu_offload and device == "cuda",
        "optimizer_bits": 8 if train.optimizer == "adamw_8bit" else 32,
        "lora": _adapters(config, architecture),
        "critic": _critic(config),
        "engine": _engine(config, computing) if online else "shared",
        **_other_models(config, architecture, online=online),
        **_processes(config, device),
    }
    workload = Workload(architecture=architecture, **(fields | known))
    by_all = not online or workload.ranks == 1 or "engine" in known
    return workload if by_all else replace(workload, **sampling_of_ranks(config.rollout.num_engines))


def _processes(config: RunConfig, device: str) -> dict[str, int]:
    """Return the engines and other ranks that share the memory of a CPU with the trainer."""
    if config.cluster is not None or device != "cpu":
        return {}
    train, place = config.train, place_of_process()
    ranks = place.size if place is not None else 1 if train.devices == "auto" else train.devices
    engines = config.rollout.num_engines if config.rollout.engine == "local" else 0
    prompts = ceil(train.prompts_per_step * (1 + train.lead) / max(1, engines))
    return {"rank_processes": ranks - 1, "engine_processes": engines, "engine_prompts": prompts}


def require_room(config: RunConfig) -> None:
    """Raise ConfigError if sampled completions leave no room for a prompt in the context that config.json declares.

    Not checked here are revisions and GGUF files, which have configurations of their own, sizes such as 7b, and models
    that cannot be read. Rotary factors may end the context sooner: that is checked when the model is loaded.
    """
    model = config.model
    samples = config.sampled_pairs is not None or config.algorithm.build().data_kind == "prompts"
    if not samples or model.revision or model.gguf_file or model.path.lower() in size_classes():
        return
    try:
        context = model_architecture(model.path).context
    except Exception:  # reported by the plan, and when the model is loaded
        return
    if type(context) is int:  # anything else is reported when the model is loaded
        config.room_for_prompts(context)


@contextmanager
def of_stage(name: str) -> Iterator[None]:
    """Name the stage in the errors of its plan."""
    try:
        yield
    except (ConfigError, DoesNotFit) as error:
        raise type(error)(given=f"stage {name}: {error.given}", allowed=error.allowed, fix=error.fix) from error


def sampling_of_ranks(engines: int = 0) -> dict[str, Any]:
    """Return who samples with several ranks: the first rank from a copy, or the engines (train/setup.py)."""
    return {"samplers": engines} if engines else {"samplers": 1, "engine": "copy"}


def model_architecture(path: str) -> Architecture:
    """Return the architecture as `read_architecture` does, also for built-in tiny models that are not built yet."""
    form, colon, name = path.partition(":")
    if not colon or form not in FORMS:
        return read_architecture(path)
    recipe = find_builtin(name).in_form(form).tiny
    return architecture_of({"model_type": recipe.model_type, **recipe.shape()}, name=path)


def _lengths(
    config: RunConfig, architecture: Architecture, lengths: RowLengths | None, turns: Turns | None, *, online: bool
) -> tuple[int, int]:
    """Return (prompt tokens, completion tokens) of the longest row."""
    context = architecture.context or 2**31
    if lengths is not None and not online:
        row = min(lengths.prompt + lengths.completion, config.data.max_length or context, context)
        completion = min(lengths.completion, max(1, row - 1))
        return max(1, row - completion), completion
    if online:
        prompt = lengths.prompt if lengths is not None else config.data.max_prompt_length or ASSUMED_PROMPT
        if turns is not None and lengths is not None:  # a trajectory may fill the context after its prompt
            prompt = min(prompt, context - 1)
            return prompt, min(longest_trajectory(config, turns), context - prompt)
        longest = config.longest_completion if turns is None else longest_trajectory(config, turns)
        completion = min(longest, context - 1)
        return min(prompt, context - completion), completion
    row = min(config.data.max_length or ASSUMED_ROW, context)
    return row // 2, row - row // 2


def _mean_completion(longest: int, lengths: RowLengths | None, turns: Turns | None, *, online: bool) -> int | None:
    """Return the mean length of completions. None if it is unknown, or equal to the longest."""
    if turns is not None:
        return min(longest, turns.mean_whole)
    return None if lengths is None or online else min(longest, lengths.mean_completion)


def _adapters(config: RunConfig, architecture: Architecture) -> Adapters | None:
    """Return the adapters of a run, with the linear layers that the names of its target modules mean."""
    if config.lora is None:
        return None
    adapters = Adapters(rank=config.lora.rank, dropout=config.lora.dropout > 0)
    if config.lora.target_modules == "all-linear":
        return adapters
    meant = {module: architecture.named(module) for module in config.lora.target_modules}
    targets = tuple(dict.fromkeys(name for names in meant.values() for name in names))
    return replace(adapters, targets=targets, unknown=tuple(module for module, names in meant.items() if not names))


def _critic(config: RunConfig) -> CriticKind:
    if "values" not in config.algorithm.declared.needs:
        return "none"
    from posttrain.config import CriticConfig

    return (config.critic or CriticConfig()).kind_beside(config.lora)


def _engine(config: RunConfig, computing: Compute) -> Engine:
    return "copy" if computing.sampler == "packed" or config.train.publish_every > 1 else "shared"


def _other_models(config: RunConfig, policy: Architecture, *, online: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    critic = config.critic
    if critic is not None:
        found["critic_rank"] = critic.rank
        if critic.path is not None and critic.path != REWARD_MODEL:
            found["critic_architecture"] = model_architecture(critic.path)
    if config.reference is not None:
        found["reference"] = model_architecture(config.reference.path)
    if config.teacher is not None:
        found["teacher"] = model_architecture(config.teacher.path)
    if online:
        found["reward_models"] = tuple(_reward_models(config, policy))
    return found


def _reward_models(config: RunConfig, policy: Architecture) -> Iterator[Architecture]:
    """Yield the reward models in this process. One that the run trains first has the policy's architecture."""
    for entry in config.rewards:
        if entry.model is not None:
            yield policy if entry.model == REWARD_MODEL else model_architecture(entry.model)


# --- lengths of the rows of data on this machine ---------------------------------------------------------------------


MOST_ROWS = 500
"""Maximum number of rows to read: enough for lengths, and read within a second."""


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """Lengths of rows, in tokens. For prompts that the model answers, completion lengths are unknown, and 0."""

    rows: int
    whole: bool
    """True if all rows of the data were read, otherwise the first ones."""
    heldout: int | None
    """Number of held-out rows. None if not all rows were read."""
    prompt: int
    """Prompt tokens of the longest row, if it has the longest completion."""
    completion: int
    mean_prompt: int
    mean_completion: int

    def __str__(self) -> str:
        rows = f"{'all' if self.whole else 'the first'} {self.rows:,} rows"
        if not self.completion:
            return (
                f"prompts of up to {self.prompt:,} tokens ({self.mean_prompt:,} on average), as in {rows} of the data"
            )
        longest, mean = self.prompt + self.completion, self.mean_prompt + self.mean_completion
        return f"rows of up to {longest:,} tokens ({mean:,} on average), as in {rows} of the data"


def row_lengths(config: RunConfig, context: int | None = None) -> RowLengths | None:
    """Measure the row lengths. None if data or tokenizer are missing here or invalid; training reports the reason."""
    train = [config.data.train] if isinstance(config.data.train, str) else config.data.train
    if config.sampled_pairs is not None or not all(Path(name).expanduser().is_file() for name in train):
        return None
    try:
        return _read(config, context)
    except Exception:  # a failed estimate must not keep a run from starting
        return None


def missing_data(config: RunConfig) -> tuple[str, ...]:
    """Return the files of the data that do not exist on this machine."""
    if config.sampled_pairs is not None:
        return ()
    from posttrain.data.read import missing_files

    return tuple(missing_files(config.data.train))


def _read(config: RunConfig, context: int | None) -> RowLengths | None:
    from posttrain.data.dataset import Sequences
    from posttrain.data.looks import LOOKS, Looking
    from posttrain.data.prompts import Renderer
    from posttrain.data.split import read_split

    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        return None
    asked = config.data.max_rows
    most = min(asked or MOST_ROWS, MOST_ROWS)
    settings = config.data.model_copy(update={"max_rows": most, "streaming": False, "max_dropped": 1.0})
    split = read_split(settings, config.seed)
    kind = config.algorithm.build().data_kind
    room = (context or 2**31) - (config.sampling.max_completion_length if kind == "prompts" else 0)
    renderer = Renderer.of(settings, tokenizer, config.model.chat_template_kwargs)
    look = Looking(
        rows=split.train,
        settings=settings,
        renderer=replace(renderer, tools=_schemas(config) or None),
        eos_ids=frozenset({int(tokenizer.eos_token_id)} if isinstance(tokenizer.eos_token_id, int) else ()),
        max_length=room if kind == "prompts" else min(room, settings.max_length or room),
        unit="tokens",
    )
    records, _, _ = LOOKS[kind].render(look)
    if kind == "prompts":
        pairs = [(len(record.ids), 0) for record in records]
    else:
        rows = ((len(row.input_ids), sum(row.completion_mask)) for row in Sequences(records))
        pairs = [(tokens - trained, trained) for tokens, trained in rows]
    longest, completion = max(map(sum, pairs)), max(trained for _, trained in pairs)
    means = [round(sum(side) / len(pairs)) for side in zip(*pairs, strict=True)]
    read = len(split.train) + len(split.heldout)
    whole = read < most or asked == most
    return RowLengths(
        rows=read,
        whole=whole,
        heldout=len(split.heldout) if whole else None,
        prompt=max(1, longest - completion),
        completion=completion,
        mean_prompt=max(1, means[0]),
        mean_completion=means[1],
    )


def _schemas(config: RunConfig) -> list[Mapping[str, Any]]:
    """Return the schemas of tools, which the chat template writes into each prompt."""
    if not config.tools:
        return []
    from posttrain.episodes.acting import Acting

    with ExitStack() as processes:
        acting = Acting.of(config, processes)
        return [] if acting is None else acting.schemas


def tokenizer_of(config: RunConfig) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a folder, a cached Hub model or a built-in model. Nothing is downloaded."""
    form, colon, _ = config.model.path.partition(":")
    if colon and form in FORMS:
        from posttrain.tasks.tiny import build_tokenizer

        return with_template(build_tokenizer(), config)
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        cached = try_to_load_from_cache(config.model.path, "tokenizer_config.json", revision=config.model.revision)
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    return with_template(AutoTokenizer.from_pretrained(folder, local_files_only=True), config)


def with_template(tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> PreTrainedTokenizerBase:
    if config.model.chat_template is not None:
        tokenizer.chat_template = Path(config.model.chat_template).read_text(encoding="utf-8")
    return tokenizer
