"""The settings of a run: what there is, where each value comes from, and the rules that span several parts.

    load_config("run.yaml", ["train.learning_rate=1e-6"])  ->  Resolved(config, origins)

Precedence: default < preset < file < command line. The models are frozen, so what is printed is what was written, and
the text under a field is its documentation everywhere. This module imports no torch; the algorithm classes are
imported when an algorithm is named.
"""

from __future__ import annotations

import copy
import difflib
import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from posttrain.config_layers import Layers
from posttrain.config_names import foreign, nearest
from posttrain.config_presets import PRESETS
from posttrain.config_rules import check
from posttrain.config_schema import (
    FieldDoc,
    Path,
    Problem,
    Problems,
    Walker,
    combine,
    explain,
    missing,
    mistyped,
    unknown,
)
from posttrain.config_text import (
    REDACTED,
    dotted,
    leaves,
    number_in,
    read_mapping,
    read_override,
    redact,
    show,
    write_tree,
)
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm

__all__ = [
    "PRESETS",
    "AlgorithmConfig",
    "CheckConfig",
    "CheckpointConfig",
    "CriticConfig",
    "DataConfig",
    "EvaluationConfig",
    "GuardConfig",
    "JudgeConfig",
    "LoRAConfig",
    "ModelConfig",
    "ReferenceConfig",
    "Resolved",
    "RewardConfig",
    "RunConfig",
    "SampledPairsConfig",
    "SamplingConfig",
    "TeacherConfig",
    "TrainConfig",
    "check",
    "describe_fields",
    "json_schema",
    "load_config",
    "saved_tree",
    "setting_names",
    "to_yaml",
]


# --- the models ---------------------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """Readers of YAML 1.1 make the text "1e-6" of 1e-6."""
    number = number_in(value) if isinstance(value, str) else None
    return value if number is None else number


def _whole(value: Any) -> Any:
    """1e4 is how one writes ten thousand steps."""
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, PathLike) else value


Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Natural = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
BelowOne = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_number)]
Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[str, Field(min_length=1), BeforeValidator(_path)]


class Part(BaseModel):
    """Base of the models: frozen, strict about types, and with errors that help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    if not TYPE_CHECKING:  # type checkers keep the keyword arguments that pydantic declares

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                problems = explain(error, Walker(type(self).model_json_schema()), setting_names)
                raise combine(problems, type(self).__name__) from None

        __init__.__pydantic_base_init__ = (
            True  # nested models are validated by pydantic, which then knows the whole path
        )


class ModelConfig(Part):
    """The model that is trained. A bare string stands for `{path: string}`."""

    path: PathText = Field(examples=["Qwen/Qwen3-0.6B"])
    """A Hugging Face folder or name, or `tiny:TASK` for the built-in tiny model of a task, which learns on a CPU
    (`tiny-moe:TASK`: a mixture of experts)."""
    gguf_file: Text | None = None
    """Read the weights from this GGUF file inside `path`; they are dequantised."""
    revision: Text | None = None
    """Branch, tag or commit of a model on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for authors whom you trust."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention implementation: PyTorch's fused kernel, or plain matrix products with a softmax in float32."""
    chat_template: PathText | None = None
    """Path of a Jinja file that replaces the tokenizer's chat template. null keeps the tokenizer's own."""
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Variables of the chat template, for example enable_thinking."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the computation; master weights are float32 always. auto is bfloat16 on a GPU that has it, else float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train and sample. auto takes the GPU if there is one."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return _expand("model", given)


class TeacherConfig(Part):
    """A frozen model that judges each token of the policy. A bare string stands for `{path: string}`.

    Everything else about it is as in `model`: attention, precision and device.
    """

    path: PathText = Field(examples=["Qwen/Qwen3-4B"])
    """A Hugging Face folder or name, or `tiny:TASK`; its tokenizer must be that of `model`."""
    revision: Text | None = None
    """Branch, tag or commit of a teacher on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with the teacher. Only for authors whom you trust."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return _expand("teacher", given)


class ReferenceConfig(Part):
    """A frozen model that the policy is held to. A bare string stands for `{path: string}`.

    Everything else about it is as in `model`: attention, precision and device.
    """

    path: PathText = Field(examples=["runs/sft-1/checkpoints/step-000100/model"])
    """A Hugging Face folder or name, or `tiny:TASK`; its tokenizer must be that of `model`."""
    revision: Text | None = None
    """Branch, tag or commit of a reference on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with the reference. Only for authors whom you trust."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return _expand("reference", given)


class LoRAConfig(Part):
    """Low-rank adapters on a frozen base model; the base model itself is the reference, so there is no second copy."""

    rank: Count = 16
    """Rank of the adapters: each adapted matrix of n x m gets rank * (n + m) trained numbers."""
    alpha: Count = 32
    """The adapter's output is scaled by alpha / rank."""
    dropout: BelowOne = 0.0
    """Probability of dropping an input of the adapters in training. Sampling and scoring have none."""
    target_modules: Literal["all-linear"] | Annotated[list[Text], Field(min_length=1)] = "all-linear"
    """Names of the adapted modules; all-linear is every linear layer but the output head."""


class CriticConfig(Part):
    """The critic of an algorithm that has one: what predicts the reward before each token."""

    kind: Literal["auto", "separate", "shared", "lora"] = "auto"
    """separate: a model of its own; shared: a head on the policy; lora: a second adapter on the policy's frozen base.
    auto is lora where the policy has adapters, else separate."""
    path: PathText | None = None
    """Where a separate critic starts: a reward model (`reward_model` is that of the section), a language model, or the
    folder of a run. null: where the policy starts."""
    rank: Count = 16
    """Rank of the critic's adapter (kind lora)."""
    alpha: Count = 32
    """Its output is scaled by alpha / rank (kind lora)."""
    learning_rate: NonNegative | None = None
    """Highest learning rate of the critic, on the course of the policy's. null: ten times train.learning_rate, as verl
    (1e-5 and 1e-6) and OpenRLHF (9e-6 and 1e-6) have it."""
    warmup_steps: Natural = 0
    """First steps in which only the critic learns, and the policy stays as it is."""
    max_grad_norm: NonNegative = 1.0
    """The critic's gradient is scaled down to this norm by itself when it is longer. 0 is off."""

    def kind_beside(self, lora: LoRAConfig | None) -> Literal["separate", "shared", "lora"]:
        """What auto means beside a policy with these adapters."""
        if self.kind == "auto":
            return "separate" if lora is None else "lora"
        return self.kind


class AlgorithmConfig(Part):
    """`{name: grpo, **settings}`, or the bare name. After validation every setting of the algorithm is here."""

    model_config = ConfigDict(extra="allow")

    name: Text = Field(examples=["grpo"])
    """Which algorithm; its settings stand beside the name. `posttrain explain NAME` shows them."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        given = _expand("algorithm", given)
        return _complete_algorithm(given) if isinstance(given, Mapping) else given

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})

    def build(self) -> Algorithm:
        """The algorithm itself."""
        return _algorithms()[self.name](**self.settings)


class DataConfig(Part):
    """The prompts or examples to learn from and those to be judged on."""

    train: PathText | list[PathText] = Field(examples=["train.jsonl"])
    """Paths or globs of JSONL, JSON, CSV or Parquet files, Hugging Face datasets (`name` or `name:config`), or
    `task:NAME`."""
    eval: PathText | list[PathText] | None = None
    """The same for the held-out rows of evaluations. null: see eval_fraction."""
    auxiliary: PathText | list[PathText] | None = None
    """Examples for an algorithm that adds a next-token loss to each update (kimi_k2 with ptx_coef): prompt and
    completion, messages or text. Named as in `train`."""
    auxiliary_rows: Count = 16
    """Rows of `auxiliary` in each update."""
    split: Text = "train"
    """Split of a Hugging Face dataset that `train` names."""
    eval_split: Text = "test"
    """Split of a Hugging Face dataset that `eval` names."""
    eval_fraction: BelowOne = 0.1
    """Share of the training rows held out when `eval` is null (a task brings its own); which rows is fixed by seed."""
    prompt: Text | None = None
    """A column, or a template over columns: "{Body} {Question}". null: prompt, question, problem or instruction."""
    system_prompt: str | None = None
    """A system message before each prompt."""
    chat: Literal["auto"] | bool = "auto"
    """Wrap plain prompts as a user turn: auto does so when the tokenizer has a chat template."""
    train_on: Literal["all", "last"] = "all"
    """Of examples that are conversations: every answer is trained, or the last one."""
    answer: Text | None = None
    """Column of the gold answer, given to rewards as `answer`. null: answer, Answer, solution, ground_truth or gold."""
    max_prompt_length: Count | None = None
    """Tokens. Longer prompts are dropped and counted, never cut. null: no limit of its own."""
    max_length: Count | None = None
    """Tokens of a given example, or of each answer of a pair, with its prompt. Longer rows are dropped and counted,
    never cut. null: the context of the model."""
    max_rows: Count | None = None
    """Use only so many rows."""
    streaming: Literal["auto"] | bool = "auto"
    """Read rows one at a time and keep what they are tokenised to on disk instead of in memory: auto does so from
    200 MB of text on. The run is the same, bit for bit. Prompts of sampled answers stay in memory."""
    part: Text | None = None
    """Train on one of several equal parts of the training rows, in their order: 2/3 is the second third (sDPO,
    arXiv:2403.19270, takes one after the other). The held-out rows stay the same."""
    max_dropped: Share = 0.5
    """Share of rows that may be dropped before it is an error."""

    @model_validator(mode="after")
    def _part_is_one_of_several(self) -> Self:
        numbers = self.part_numbers
        if self.part is not None and (numbers is None or not 1 <= numbers[0] <= numbers[1]):
            raise ConfigError(
                given=f"part = {self.part!r}",
                allowed="k/n, the k-th of n parts: 1/3, 2/3 or 3/3",
                fix="Set data.part = 1/3, or leave it out.",
            )
        return self

    @property
    def part_numbers(self) -> tuple[int, int] | None:
        """(k, n) of part k/n; None for all rows."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", self.part or "")
        return (int(match[1]), int(match[2])) if match else None


class JudgeConfig(Part):
    """A language model that judges answers: behind an endpoint, from a folder, or the policy itself."""

    model: PathText = Field(examples=["policy"])
    """With url, what the endpoint calls it. Without, a model folder that is loaded here, or `policy`: the model that is
    trained, as it is at that moment."""
    url: Text | None = None
    """Base of an OpenAI-compatible endpoint, for example http://localhost:8000/v1. null: the model runs here."""
    api_key_env: Text | None = None
    """Name of the environment variable that holds the endpoint's key. The key itself belongs into no file."""
    mode: Literal["pairwise", "score", "reference"] = "pairwise"
    """pairwise: each answer against the others of its group, in both orders: 1, 1/2 for a tie, 0, and their mean.
    score: points from 0 to 5, over 5. reference: 1 when it means the same as a column of the row, else 0."""
    against: Text | None = None
    """Column that answers are compared with. null: in mode reference `answer`, in mode pairwise the rest of the
    group."""
    rubric: Text | None = None
    """What makes an answer good, in place of the built-in text."""
    template: PathText | None = None
    """Text file with the whole question, in place of the built-in one; its fields are those of the mode: {prompt} and
    {first}, {second}, or {completion}, or {completion}, {reference}; and {rubric}."""
    strip_reasoning: bool = True
    """Judge only what follows the last </think> of an answer."""
    max_comparisons: Count | None = None
    """Most comparisons in one group, spread evenly; each answer still takes part in one. null: all pairs."""
    samples: Count = 1
    """Judgements of each answer in mode score, whose mean counts; more than 1 need a temperature."""
    temperature: NonNegative = 0.0
    """Of the judge. 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1), BeforeValidator(_number)] = 1.0
    """Of the judge, with a temperature above 0. 1 is off."""
    max_tokens: Count = 1024
    """Tokens that a reply may have; the verdict stands at its end."""
    concurrency: Count = 8
    """Requests at the same time; of a model that runs here, questions that are decoded together."""
    timeout: Positive = 60.0
    """Seconds for one request to the endpoint."""
    deadline: Positive = 600.0
    """Seconds for all requests of one step or evaluation; what is open then is unscored."""
    retries: Natural = 4
    """How often a request is repeated after a lost connection, a time-out, 429 or 5xx; the pauses grow, or are what the
    endpoint asks for."""
    max_calls: Count | None = None
    """Budget of the run in requests. When it is spent, answers are unscored."""
    max_total_tokens: Count | None = None
    """Budget of the run in tokens, questions and replies together."""
    cache: bool | PathText = True
    """Keep replies on disk and ask nothing twice: in this folder; true: in POSTTRAIN_CACHE, or else in the user's cache
    folder. What the policy said is never kept."""
    request: dict[str, JsonValue] = {}
    """Further fields of the request to the endpoint; null leaves one of the usual fields out."""

    @model_validator(mode="after")
    def _settings_do_something(self) -> Self:
        strange = [name for name in _ENDPOINT_SETTINGS if getattr(self, name) != _default(self, name)]
        if self.url is None and strange:
            raise ConfigError(
                given=f"judge.{strange[0]} without judge.url, for a model that runs here",
                allowed="judge.url, or none of its settings",
                fix=f"Set judge.url = http://localhost:8000/v1, or remove judge.{strange[0]}.",
            )
        modes = {"max_comparisons": ("pairwise",), "samples": ("score",), "against": ("pairwise", "reference")}
        for name, those in modes.items():
            if getattr(self, name) != _default(self, name) and self.mode not in those:
                raise ConfigError(
                    given=f"judge.{name} = {getattr(self, name)} in mode {self.mode}",
                    allowed=f"mode {' or '.join(those)}",
                    fix=f"Remove judge.{name}, or set judge.mode = {those[0]}.",
                )
        if self.max_comparisons is not None and self.against is not None:
            raise ConfigError(
                given=f"judge.max_comparisons = {self.max_comparisons}, but each answer is compared with the column "
                f"{self.against} alone",
                allowed="one of judge.max_comparisons and judge.against",
                fix="Remove judge.max_comparisons.",
            )
        if self.temperature == 0 and (self.samples > 1 or self.top_p < 1):
            name = "samples" if self.samples > 1 else "top_p"
            raise ConfigError(
                given=f"judge.{name} = {getattr(self, name)} at judge.temperature = 0, where all replies are the same",
                allowed="a temperature above 0",
                fix=f"Set judge.temperature = 0.7, or remove judge.{name}.",
            )
        if self.url is None and self.model == "policy" and isinstance(self.cache, str):
            raise ConfigError(
                given=f"judge.cache = {self.cache!r}, but what the policy says changes with its weights and is lost",
                allowed="judge.cache for an endpoint or a model folder",
                fix="Remove judge.cache.",
            )
        return self

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        if self.api_key_env is not None and not re.fullmatch("[A-Z_][A-Z0-9_]*", self.api_key_env):
            raise ConfigError(  # which must not show what was given: it may be the key
                given="judge.api_key_env is not the name of an environment variable",
                allowed="capital letters, digits and underscores",
                fix="Put the key into a variable (export JUDGE_API_KEY=...) and set judge.api_key_env = JUDGE_API_KEY.",
            )
        if self.url is not None and not re.fullmatch(r"https?://[^\s@/]+(/[^\s@?#]*)?", self.url):
            raise ConfigError(
                given="judge.url is not the base of an endpoint",
                allowed="http or https, host and path, without a name, a password or a query",
                fix="Set judge.url = http://localhost:8000/v1; a key is given by judge.api_key_env.",
            )
        return self

    @property
    def column(self) -> str | None:
        """The column that answers are compared with."""
        return self.against or ("answer" if self.mode == "reference" else None)

    @property
    def compares_groups(self) -> bool:
        """Is an answer judged by the others to the same prompt alone?"""
        return self.mode == "pairwise" and self.against is None


_ENDPOINT_SETTINGS = ("api_key_env", "timeout", "deadline", "retries", "max_calls", "max_total_tokens", "request")


class _Scorer(Part):
    """What rewards and checks have in common: exactly one of name, function, model and judge."""

    name: Text | None = None
    """exact_match, numeric, regex, math, or a name that a package published as entry point (posttrain.rewards)."""
    function: Text | None = None
    """Your own: `path/to/file.py:function` or `package.module.function`."""
    model: PathText | None = None
    """A reward model: its folder, that of the run which trained it, or a name on the Hub; `reward_model` is the one of
    the section reward_model. It scores here, in batches."""
    judge: JudgeConfig | None = None
    """A language model that compares or grades answers."""
    timeout: Positive = 10.0
    """Seconds for one call with a whole batch; then it is killed and its completions are unscored, never 0. A model has
    no limit, and a judge has its own."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments for the reward; of a model `normalize: true`, to have scores of mean 0 and standard deviation 1
    on its own held-out answers. Secrets do not belong here: read them from the environment."""
    label: Text | None = None
    """Name in metrics and tables. null: the name, the function's name, reward_model, or judge."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("name", "function", "model", "judge") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                given=f"both {' and '.join(given[:2])} are set"
                if given
                else "none of name, function, model and judge is set",
                allowed="exactly one of name, function, model and judge",
                fix="Write {name: math} for a built-in reward, {function: my_rewards.py:score} for your own, "
                "{model: FOLDER} for a reward model, or {judge: {...}} for a language model that judges.",
            )
        if self.model is not None and self.timeout != type(self).model_fields["timeout"].default:
            raise ConfigError(
                given=f"timeout = {self.timeout:g} for the reward model {self.model!r}, which has no time limit",
                allowed="a timeout for functions",
                fix="Remove timeout.",
            )
        strange = [name for name in ("settings", "timeout") if getattr(self, name) != _default(self, name)]
        if self.judge is not None and strange:
            raise ConfigError(
                given=f"{strange[0]} = {getattr(self, strange[0])} beside a judge, which has settings of its own",
                allowed="weight and label",
                fix="Set judge.timeout." if strange[0] == "timeout" else f"Remove {strange[0]}.",
            )
        return self

    @property
    def metric_name(self) -> str:
        """The label, or what stands for it: the reward is logged as rewards/<metric_name>/mean."""
        if self.judge is not None:
            return self.label or "judge"
        if self.model is not None:
            return self.label or "reward_model"
        return self.label or self.name or str(self.function).replace(":", ".").rpartition(".")[2]


def _default(part: Part, name: str) -> Any:
    return type(part).model_fields[name].default


class RewardConfig(_Scorer):
    """One reward: exactly one of name, function, model and judge."""

    weight: Number = 1.0
    """Factor in the sum of the rewards; negative for a penalty."""


class CheckConfig(_Scorer):
    """One independent check, written as a reward is. It has no weight: checks are shown one by one, never summed."""

    @property
    def weight(self) -> float:
        """For whoever builds it like a reward."""
        return 1.0


class SamplingConfig(Part):
    """How completions are drawn in training."""

    group_size: Count = 8
    """Completions per prompt (G)."""
    max_completion_length: Count = 256
    """Tokens, EOS included; what is longer is cut and counted as truncated."""
    temperature: NonNegative = 1.0
    """Logits are divided by it, in sampling and in training alike. 0 is greedy, for evaluation only."""
    top_p: Annotated[float, Field(gt=0, le=1), BeforeValidator(_number)] = 1.0
    """Sample from the most likely tokens that together have this probability. 1 is off."""
    top_k: Natural = 0
    """Sample from so many most likely tokens. 0 is off."""
    min_p: BelowOne = 0.0
    """Leave out tokens less likely than this share of the most likely one. 0 is off."""
    stop: list[Text] = []
    """Texts that end a completion. The text is not part of what rewards see."""
    max_batch_rows: Count = 64
    """Rows that are decoded together: more is faster and needs more memory for their caches."""


class SampledPairsConfig(Part):
    """Which pairs are made of the answers that the start model gives before training: one round of iterative DPO."""

    select: Literal["best_worst", "random"] = "best_worst"
    """Of each prompt's answers: the best against the worst, then the second best against the second worst; or any two
    of different score, drawn at random."""
    min_gap: NonNegative = 0.0
    """Least difference of the two scores."""
    correct_at: Number | None = None
    """Only pairs of a right answer and a wrong one, an answer being right from this score on (iterative RPO). null: any
    two of different score."""
    max_per_prompt: Count = 1
    """Most pairs of one prompt."""
    max_without: Share = 0.9
    """Share of prompts that may give no pair before it is an error that says why."""


class TrainConfig(Part):
    """The optimizer and the size of a step."""

    steps: Count = Field(examples=[200])
    """Steps: each samples (or takes) prompts_per_step prompts and learns from them."""
    prompts_per_step: Count = 16
    """Prompts of one step, which then has prompts_per_step * group_size rows. For supervised algorithms: the rows."""
    learning_rate: NonNegative = 1e-6
    """Highest learning rate of AdamW. The default is for training all weights by reinforcement; LoRA takes about ten
    times more."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to min_learning_rate_ratio of it."""
    warmup_steps: Natural = 0
    """Steps in which the learning rate rises from 0."""
    min_learning_rate_ratio: Share = 0.0
    """Where the schedule ends, as a share of learning_rate."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay per unit of learning rate, on matrices only."""
    adam_beta1: BelowOne = 0.9
    """Decay of AdamW's mean of gradients."""
    adam_beta2: BelowOne = 0.999
    """Decay of AdamW's mean of squared gradients."""
    adam_eps: Positive = 1e-8
    """Added to the root in AdamW's denominator."""
    max_grad_norm: NonNegative = 1.0
    """The gradient is scaled down to this norm when it is longer. 0 is off."""
    minibatches: Count = 1
    """Optimizer steps per batch: the rows of a step are divided among them."""
    epochs: Count = 1
    """Passes over each batch. With more than one update per batch the ratios of the algorithm do their work."""
    tokens_per_microbatch: Count = 4096
    """Tokens in one forward and backward pass. It decides memory and speed, never the gradient."""
    logprob_chunk_tokens: Count = 1024
    """Tokens whose logits are held at once: memory is this times the vocabulary. It never changes a result."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss; their rewards still count in the statistics of their group."""
    max_staleness: Natural = 0
    """Policy versions that experience may be old. 0 is synchronous training, the only choice in this version."""
    publish_every: Count = 1
    """Steps from one handing over of weights to the sampler to the next. Above 1 the steps between learn from what an
    older policy sampled, so that off-policy corrections can be studied; the sampler then holds a copy of the model."""
    max_sampling_rounds: Count = 10
    """Most rounds of sampling in one step, where the algorithm replaces groups without signal; then it is an error."""


class EvaluationConfig(Part):
    """Held-out evaluation; every run has one before and one after."""

    every: Natural = 0
    """Steps between evaluations. 0: only before and after."""
    prompts: Count = 256
    """Held-out prompts at most."""
    samples: Natural = 4
    """Completions per prompt; pass@k and majority vote go up to this k. 1 gives pass@1 alone, 0 greedy answers only."""
    temperature: NonNegative = 1.0
    """Of the sampled part; the greedy part has none."""
    max_completion_length: Count | None = None
    """Tokens. null: sampling.max_completion_length."""
    confidence: Annotated[float, Field(gt=0, lt=1), BeforeValidator(_number)] = 0.95
    """Level of the intervals."""
    forgetting: PathText | None = None
    """Text or JSONL file whose loss under the model is measured before and after, to see what was unlearned."""


class CheckpointConfig(Part):
    """When to save, and how much to keep."""

    every: Natural = 50
    """Steps between checkpoints. 0: only the last."""
    keep: Count = 3
    """Checkpoints kept; older ones are deleted."""


class GuardConfig(Part):
    """Limits past which going on would give a wrong or a useless model; the run stops and says why."""

    max_unscored: Share = 0.2
    """Share of completions in one step whose reward failed or timed out."""
    no_signal_steps: Count = 20
    """Steps in a row in which no group had two different rewards."""
    max_truncated: Share = 0.5
    """Share of completions in one step that were truncated; the first step above it warns."""
    truncated_steps: Count = 5
    """Steps in a row above max_truncated."""
    publish_tolerance: Positive | None = None
    """Nats per token that trainer and sampler may differ by after the weights were published. null: by precision."""


class RunConfig(Part):
    """Everything that a run depends on."""

    model: ModelConfig = Field(examples=["Qwen/Qwen3-0.6B"])
    """The model that is trained."""
    lora: LoRAConfig | None = None
    """Train low-rank adapters; null trains all weights."""
    reference: ReferenceConfig | None = None
    """The model that the policy is held to, for an algorithm that has one; null is the model that the run starts with,
    of which there is no second copy with lora or on given answers."""
    teacher: TeacherConfig | None = None
    """The teacher, for an algorithm that learns from one (distillation)."""
    critic: CriticConfig | None = None
    """The critic, for an algorithm that has one (ppo); null is one with default settings there."""
    algorithm: AlgorithmConfig = Field(examples=["grpo"])
    """The algorithm and its settings."""
    data: DataConfig = Field(examples=[{"train": "train.jsonl"}])
    """The prompts or examples."""
    rewards: list[RewardConfig] = []
    """What training maximises: the weighted sum."""
    check: list[CheckConfig] = []
    """An independent check: scored in evaluations only, never seen by training."""
    reward_model: dict[str, JsonValue] | None = None
    """A reward model to train first, on preference pairs: the settings of a run of its own (data and train at least),
    made in the folder reward_model of this run. Its algorithm is reward_model, model and seed are those of this run,
    unless given. An entry `{model: reward_model}` of rewards or check scores with it."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    sampled_pairs: SampledPairsConfig | None = None
    """For algorithms that learn from pairs: answer the prompts of data.train with the model that the run starts with,
    order the answers by rewards, and train on the pairs (pairs.jsonl in the run's folder). One round of iterative DPO;
    a pipeline repeats it. data.train may list pairs.jsonl of earlier rounds beside the prompts, to keep their pairs."""
    train: TrainConfig = Field(examples=[{"steps": 200}])
    """The optimizer and the size of a step."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save."""
    guards: GuardConfig = GuardConfig()
    """When to stop."""
    output: PathText | None = None
    """Folder of the run. null: the first free runs/<model>-<algorithm>-<n>."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_whole)] = 0
    """All randomness of the run is a function of it."""
    report: bool = True
    """Write report.html."""


# --- the algorithm, validated by its own class ----------------------------------------------------------------------

_BARE = {"model": "path", "reference": "path", "teacher": "path", "algorithm": "name"}
"""Sections that a bare string may stand for, and the key that it gives."""


def _expand(section: str, given: Any) -> Any:
    """`model: x` is `model: {path: x}`; an algorithm object is its name and settings."""
    if section in _BARE and isinstance(given, (str, PathLike)):
        return {_BARE[section]: given}
    if section == "algorithm" and is_dataclass(given) and not isinstance(given, type):
        return {
            "name": getattr(given, "key", None),
            **TypeAdapter(type(given)).dump_python(given, mode="json", by_alias=True),
        }
    return given


def _written_out(path: Path, given: Any) -> dict[str, Any]:
    """The settings of a correction that was given by its name, so that one of them can be changed by itself."""
    if path != ("algorithm", "correction") or not isinstance(given, str):
        return {}
    from posttrain.algorithms.off_policy.correction import Correction  # imports torch
    from posttrain.algorithms.off_policy.names import NAMED

    named = NAMED.get(given)
    return {} if named is None else TypeAdapter(Correction).dump_python(named, mode="json")


def _algorithms() -> Mapping[str, type[Algorithm]]:
    from posttrain.algorithms import ALGORITHMS  # imports torch, so only where an algorithm is looked at

    return ALGORITHMS


@functools.cache
def _algorithm_type(name: str) -> tuple[TypeAdapter[Any], Walker]:
    adapter = TypeAdapter(_algorithms()[name])
    return adapter, Walker(adapter.json_schema())


def _settings_of(name: str) -> Mapping[str, Any]:
    """The JSON schema of each setting of an algorithm."""
    return _algorithm_type(name)[1].root.get("properties", {})


def _complete_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """`{name, **settings}` with every setting of the algorithm filled in; raises `Problems`."""
    name, settings = given.get("name"), {key: value for key, value in given.items() if key != "name"}
    if not isinstance(name, str) or name not in _algorithms():
        raise Problems([_which_algorithm(name), *_settings_of_none(settings)])
    (adapter, walker), allowed = _algorithm_type(name), _settings_of(name)
    strange = [key for key in settings if key not in allowed]
    problems = [problem for key in strange for problem in _not_of_algorithm(key, settings.pop(key), name)]
    for key in [key for key, value in settings.items() if isinstance(value, bool)]:  # true is not the number 1
        if "true" not in walker.describe(allowed[key]):
            problems.append(mistyped(("algorithm", key), allowed[key], settings.pop(key), walker))
    try:
        algorithm = adapter.validate_python(settings)
    except ValidationError as error:
        problems += explain(error, walker, list, prefix=("algorithm",))
    if problems:
        raise Problems(problems)
    return {"name": name, **adapter.dump_python(algorithm, mode="json", by_alias=True)}


def _which_algorithm(name: Any) -> Problem:
    path, names = ("algorithm", "name"), list(_algorithms())
    if name is None:
        return missing(path, {"enum": names, "examples": ["grpo"]}, _walker())
    close = nearest(str(name), names)
    return Problem(
        path=path,
        given=f"algorithm.name = {show(name)}",
        allowed=", ".join(names),
        fix=f"Did you mean {close}?" if close else "posttrain explain shows what each of them does.",
    )


def _settings_of_none(settings: Mapping[str, Any]) -> list[Problem]:
    """The settings that would be wrong for every algorithm."""
    known = setting_names()
    wrong = [(key, value) for key, value in settings.items() if f"algorithm.{key}" not in known]
    return [problem for key, value in wrong for problem in unknown(("algorithm", key), value, known)]


def _names_under(section: Any) -> list[str]:
    """The dotted paths of the settings that exist under the algorithm of the section; of all where it names none."""
    name = section.get("name") if isinstance(section, Mapping) else section
    return setting_names(name if isinstance(name, str) and name in _algorithms() else None)


def _not_of_algorithm(key: str, value: Any, name: str) -> list[Problem]:
    others, own = [other for other in _algorithms() if key in _settings_of(other)], setting_names(name)
    meant = foreign(key, show(value), own)
    if not others or (meant is not None and meant.key.startswith("algorithm.") and meant.key in own):
        return unknown(("algorithm", key), value, own, own)
    has = ", ".join(_settings_of(name)) or "no settings"
    given = f"algorithm.{key} = {show(value)} is not a setting of {name}"
    return [Problem(path=("algorithm", key), given=given, fix=f"It is one of {', '.join(others)}. {name} has {has}.")]


# --- loading ----------------------------------------------------------------------------------------------------------

DERIVED = {("algorithm", "max_completion_length"): ("sampling", "max_completion_length")}
"""Settings that are null unless given, and the setting that they then follow."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A configuration with the origin of every value."""

    config: RunConfig
    origins: Mapping[str, str]
    """Dotted path -> "default", "preset:NAME", "file:PATH", "command line", "caller" (Python) or "derived: PATH"."""


def load_config(
    source: str | PathLike[str] | Mapping[str, Any] | RunConfig,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    shared: Mapping[str, Any] | None = None,
    origin: str = "",
) -> Resolved:
    """The configuration of a run, from a YAML or TOML file (or a mapping, or a RunConfig) and overrides.

    Overrides are `a.b=value` with the value read as YAML, or a mapping with nested or dotted keys. Mappings are merged
    key by key, lists are replaced as a whole or changed by position (`rewards.0.weight=0.5`). `shared` are settings
    below those of the source, as the stages of a pipeline have them; `origin` says where a mapping was read.
    Raises ConfigError with everything that is wrong at once. Rules that span parts are `check`.
    """
    given, found_in = _read(source)
    origin, below = origin or found_in, _plain(shared or {})
    changes = _read_overrides(overrides)
    layers = Layers(expand=_expand, written_out=_written_out)
    shared_preset = below.pop("preset", None)
    in_file, asked_for = given.pop("preset", shared_preset), _take_presets(changes)
    preset = _known_preset(asked_for[-1] if asked_for else in_file)
    if preset:
        layers.put((), PRESETS[preset], f"preset:{preset}")
    layers.put((), below, origin)
    layers.put((), given, origin)
    if preset and asked_for:
        _refuse_another_algorithm(preset, layers)
        _refuse_covered(preset, layers)
    for key, value, who in changes:
        layers.put(layers.locate(key, _walker()), value, who)
    if preset:
        _refuse_another_algorithm(preset, layers)
    return _resolve(layers, where=_place(origin) or "the configuration")


def _read(source: str | PathLike[str] | Mapping[str, Any] | RunConfig) -> tuple[dict[str, Any], str]:
    if isinstance(source, (str, PathLike)):
        return read_mapping(source), f"file:{os.fspath(source)}"
    if isinstance(source, (Mapping, RunConfig)):
        return _plain(source), "caller"
    raise ConfigError(
        given=f"a configuration of type {type(source).__name__}",
        allowed="the path of a YAML or TOML file, a mapping or a RunConfig",
        fix='For example posttrain.train("run.yaml").',
    )


def _read_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """(dotted key, value, who gave it), in their order."""
    if isinstance(overrides, Mapping):
        return [(str(key), _plain(value), "caller") for key, value in overrides.items()]
    texts = [overrides] if isinstance(overrides, str) else overrides
    return [(*read_override(text), "command line") for text in texts]


def _plain(value: Any) -> Any:
    """Python values as they would stand in a file; of a model only what was set."""
    if isinstance(value, AlgorithmConfig):
        defaults = _complete_algorithm({"name": value.name})
        return {k: v for k, v in value.model_dump().items() if k == "name" or v != defaults[k]}
    if isinstance(value, BaseModel):
        return {
            name: _plain(getattr(value, name)) for name in type(value).model_fields if name in value.model_fields_set
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, PathLike) else value


def _take_presets(changes: list[tuple[str, Any, str]]) -> list[Any]:
    """The presets that overrides ask for, taken out of them: a preset is not a setting but where settings come from."""
    asked_for = [value for key, value, _ in changes if key == "preset"]
    changes[:] = [change for change in changes if change[0] != "preset"]
    return asked_for


def _known_preset(name: Any) -> str | None:
    if name is None or (isinstance(name, str) and name in PRESETS):
        return name
    close = difflib.get_close_matches(str(name), PRESETS, n=1)
    raise ConfigError(
        given=f"preset = {show(name)}",
        allowed=", ".join(PRESETS),
        fix=f"Did you mean {close[0]}?" if close else "Leave it out, or name one of these.",
    )


def _refuse_covered(preset: str, layers: Layers) -> None:
    """A preset stands below the file: asked for on the command line, it must not silently do nothing."""
    covered = [(path, value) for path, value in leaves(PRESETS[preset]) if layers.at(path) != value]
    if covered:
        raise ConfigError(
            given=f"preset={preset}, but the file goes before it and gives {', '.join(dotted(p) for p, _ in covered)}",
            allowed="a preset whose values the file leaves open",
            fix="Give the values themselves: " + " ".join(f"{dotted(path)}={show(value)}" for path, value in covered),
        )


def _refuse_another_algorithm(preset: str, layers: Layers) -> None:
    """The settings of a preset's algorithm must not end up under the name of another one."""
    path = ("algorithm", "name")
    own, named = PRESETS[preset].get("algorithm", {}).get("name"), layers.at(path)
    if own is not None and named != own:
        raise ConfigError(
            given=f"preset {preset} stands for algorithm {own} with settings of its own, but "
            f"{_place(layers.source(path)) or 'the configuration'} names algorithm {show(named)}",
            allowed=f"the preset, or algorithm.name = {show(named)}",
            fix="Leave one of the two out; beside the preset, algorithm takes single settings: algorithm.kl_coef=0.01.",
        )


def _resolve(layers: Layers, where: str) -> Resolved:
    config = _validate(layers, where)
    for target, follows in DERIVED.items():
        if _get(config, target, default="") is None:
            layers.put(target, _get(config, follows), f"derived: {dotted(follows)}")
            config = _validate(layers, where)
    origins = {dotted(path): layers.origins.get(path, "default") for path, _ in leaves(config.model_dump(mode="json"))}
    return Resolved(config=config, origins=origins)


def _get(config: RunConfig, path: Path, default: Any = None) -> Any:
    return functools.reduce(lambda part, name: getattr(part, str(name), default), path, config)


def _validate(layers: Layers, where: str) -> RunConfig:
    problems = [_was_redacted(path) for path, value in leaves(layers.tree) if REDACTED in str(value)]
    try:
        config = RunConfig.model_validate(layers.tree)
    except ValidationError as error:
        problems += explain(error, _walker(), setting_names, own=lambda: _names_under(layers.tree.get("algorithm")))
    if problems:
        raise combine(problems, where, lambda path: _place(layers.source(path))) from None
    return config


def _place(origin: str) -> str:
    return "" if origin == "caller" else origin.removeprefix("file:")


def _was_redacted(path: Path) -> Problem:
    name = dotted(path)
    return Problem(
        path=path,
        given=f"{name} held a secret, which was not saved",
        allowed="the value itself",
        fix=f"Let the function read it from an environment variable, or give it again: {name}=...",
    )


# --- what there is, and saving --------------------------------------------------------------------------------------


@functools.cache
def _walker() -> Walker:
    return Walker(RunConfig.model_json_schema())


def describe_fields() -> tuple[FieldDoc, ...]:
    """Every setting: path, type, default and documentation. Settings of the algorithms are in `posttrain explain`."""
    return tuple(_walker().fields())


def setting_names(algorithm: str | None = None) -> list[str]:
    """The dotted paths of all settings, positions in lists left out; with those of one algorithm, or of all."""
    own = ["preset", *(doc.path.replace(".N", "") for doc in describe_fields())]
    names = _algorithms() if algorithm is None else [algorithm]
    of_algorithms = [doc.path for name in names for doc in _algorithm_type(name)[1].fields()]
    return list(dict.fromkeys([*own, *(f"algorithm.{path}" for path in of_algorithms)]))


def json_schema() -> dict[str, Any]:
    """JSON schema of a configuration file, for editors: every algorithm with its own settings, and the presets."""
    schema = copy.deepcopy(dict(_walker().root))
    definitions = schema["$defs"]
    choices: list[dict[str, Any]] = [{"enum": list(_algorithms())}]
    for name in _algorithms():
        settings = copy.deepcopy(dict(_algorithm_type(name)[1].root))
        definitions |= settings.pop("$defs", {})
        settings["properties"] = {"name": {"const": name}, **settings.get("properties", {})}
        choices.append(settings | {"required": ["name", *settings.get("required", [])]})
    definitions["AlgorithmConfig"] = {"anyOf": choices}
    for shorthand in ("ModelConfig", "ReferenceConfig", "TeacherConfig"):
        definitions[shorthand] = {"anyOf": [{"type": "string"}, definitions[shorthand]]}
    schema["properties"] = {"preset": {"enum": list(PRESETS)}, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def to_yaml(resolved: Resolved) -> str:
    """The complete configuration, each value with its origin behind it; it loads back to the same configuration.

    Secrets in free-form settings are saved as <redacted>; such a file asks for them when it is loaded.
    """
    tree = saved_tree(resolved.config)
    return "# All settings of this run, each with where its value came from.\n" + write_tree(tree, resolved.origins)


def saved_tree(config: RunConfig) -> dict[str, Any]:
    """Every setting as it is saved: plain data, with secrets in free-form settings as <redacted>."""
    tree = config.model_dump(mode="json")
    for reward in [*tree["rewards"], *tree["check"]]:
        reward["settings"] = redact(reward["settings"])
        if reward["judge"] is not None:
            reward["judge"]["request"] = redact(reward["judge"]["request"])
    tree["model"]["chat_template_kwargs"] = redact(tree["model"]["chat_template_kwargs"])
    return tree
