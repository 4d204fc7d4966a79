"""The sections of a configuration, but for the algorithm and for what scores answers.

The text under a field is its documentation everywhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from posttrain.config.values import (
    BelowOne,
    Count,
    FunctionText,
    Natural,
    NonNegative,
    Number,
    Part,
    PathText,
    Positive,
    Share,
    Text,
    as_number,
    expand,
)
from posttrain.errors import ConfigError
from posttrain.plugins import published

MICROBATCH_TOKENS, BATCH_ROWS = 2048, 64
"""The value of `auto` on a CPU, where available memory does not decide."""
ENGINES = ("local", "vllm")
"""Ours."""


def _published_engine(name: str) -> str:
    if name not in published("engine", ENGINES):
        raise ValueError("no package publishes it")
    return name


EngineName = Annotated[
    str,
    AfterValidator(_published_engine),
    WithJsonSchema({"type": "string", "x-said": "the name of an engine that a package publishes"}),
]
Ratio = Annotated[float, Field(gt=1), BeforeValidator(as_number)]


class ByPath(Part):
    """A section that a bare string stands for: `{path: string}`."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return expand("model", given)


class ModelConfig(ByPath):
    """The model that is trained. A bare string stands for `{path: string}`."""

    path: PathText = Field(examples=["Qwen/Qwen3-0.6B"])
    """A Hugging Face folder or name, or `tiny:TASK` for the built-in tiny model of a task, which learns on a CPU
    (`tiny-moe:TASK`: a mixture of experts; `tiny-wide:TASK`: with wider heads, for a vLLM server)."""
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
    """Precision of the computation; master weights are always float32. auto is bfloat16 on a GPU that supports it. On a
    CPU auto is bfloat16 if the model has a million parameters or more, the processor supports it, and a short
    measurement shows it to be 1.2 times as fast as float32; else float32. A run that moves its weights by so little
    that bfloat16 shows few of the changes is float32 there, too; with bfloat16, or on a GPU, it warns. float32 never
    computes in less. A frozen teacher or reference holds its linear layers in this precision, which changes no number.
    The choice is saved with the run and shown at its start."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train and sample. auto takes the GPU if there is one."""


class FrozenModelConfig(ByPath):
    """A frozen model beside the trained one."""

    path: PathText = Field(examples=["Qwen/Qwen3-4B"])
    """A Hugging Face folder or name, or `tiny:TASK`; its tokenizer must be that of `model`."""
    revision: Text | None = None
    """Branch, tag or commit on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with it. Only for authors whom you trust."""


class TeacherConfig(FrozenModelConfig):
    """A frozen model that judges each token of the policy. A bare string stands for `{path: string}`.

    Everything else about it is as in `model`: attention, precision and device.
    """


class ReferenceConfig(FrozenModelConfig):
    """A frozen model that the policy is held to. A bare string stands for `{path: string}`.

    Everything else about it is as in `model`: attention, precision and device.
    """


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
    """The critic of an algorithm that has one: it predicts the reward before each token."""

    kind: Literal["auto", "separate", "shared", "lora"] = "auto"
    """separate: a model of its own; shared: a head on the policy; lora: a second adapter on the policy's frozen base.
    auto is lora where the policy has adapters, else separate."""
    path: PathText | None = None
    """Where a separate critic starts: a reward model (`reward_model` names the one that the section trains), a language
    model, or the folder of a run. null: where the policy starts."""
    rank: Count = 16
    """Rank of the critic's adapter (kind lora)."""
    alpha: Count = 32
    """Its output is scaled by alpha / rank (kind lora)."""
    learning_rate: NonNegative | None = None
    """Highest learning rate of the critic; it follows the policy's schedule. null: ten times train.learning_rate, as in
    verl (1e-5 and 1e-6) and OpenRLHF (9e-6 and 1e-6)."""
    warmup_steps: Natural = 0
    """First steps in which only the critic learns, and the policy stays as it is."""
    max_grad_norm: NonNegative = 1.0
    """The critic's gradient is clipped to this norm, separately from the policy's. 0 is off."""

    def kind_beside(self, lora: LoRAConfig | None) -> Literal["separate", "shared", "lora"]:
        """The meaning of auto beside a policy with these adapters."""
        if self.kind == "auto":
            return "separate" if lora is None else "lora"
        return self.kind


class DataConfig(Part):
    """The prompts or examples to learn from, and those to be judged on."""

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
    columns: dict[Text, Text] = {}
    """Names of columns in `train` and `eval` that differ from ours: {chosen: better, rejected: worse}. Common names are
    recognised without this setting. A file that already has a column with our name keeps it."""
    prompt: Text | None = None
    """A column, or a template over columns: "{Body} {Question}". null: prompt, question, problem or instruction."""
    system_prompt: str | None = None
    """A system message before each prompt that has none of its own."""
    chat: Literal["auto"] | bool = "auto"
    """Wrap plain prompts as a user turn: auto does so when the tokenizer has a chat template."""
    train_on: Literal["all", "last"] = "all"
    """In examples that are conversations, train every answer or only the last one."""
    answer: Text | None = None
    """Column of the gold answer, given to rewards as `answer`. null: answer, Answer, solution, ground_truth or gold."""
    max_prompt_length: Count | None = None
    """Tokens. Longer prompts are dropped and counted, never cut. null: no separate limit."""
    max_length: Count | None = None
    """Tokens of a given example, or of each answer of a pair, with its prompt. Longer rows are dropped and counted,
    never cut. null: the context of the model."""
    max_rows: Count | None = None
    """Use at most this many rows."""
    streaming: Literal["auto"] | bool = "auto"
    """Tokenise each row in the step that uses it, instead of all rows before the run. auto does so from 20 MB of text.
    The run is the same, bit for bit, unless a row turns out to be unusable during the run. Ratings and steps stay in
    memory."""
    part: Text | None = None
    """Train on one of several equal parts of the training rows, in their order: 2/3 is the second third. sDPO
    (arXiv:2403.19270) trains on one part after the other. The held-out rows stay the same."""
    stratify: Text | None = None
    """A column of the prompts, such as answer. Each step then holds every value of it in its share of all rows, and no
    longer by chance: where many prompts have the same few answers, a step with more of one of them teaches the model to
    give that answer to all. Rows without the column count as one more value."""
    max_dropped: Share = 0.5
    """Share of rows that may be dropped. More are an error."""

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


class SamplingConfig(Part):
    """How completions are drawn in training."""

    group_size: Count = 8
    """Completions per prompt (G)."""
    max_completion_length: Count = 256
    """Tokens, including EOS. Longer completions are cut and counted as truncated."""
    temperature: NonNegative = 1.0
    """Logits are divided by it, in sampling and in training alike. 0 is greedy, for evaluation only."""
    top_p: Annotated[float, Field(gt=0, le=1), BeforeValidator(as_number)] = 1.0
    """Sample from the most likely tokens that together have this probability. 1 is off."""
    top_k: Natural = 0
    """Sample from this many of the most likely tokens. 0 is off."""
    min_p: BelowOne = 0.0
    """Leave out tokens less likely than this share of the most likely one. 0 is off."""
    stop: list[Text] = []
    """Texts that end a completion. Rewards do not see the text that ended it."""
    max_turns: Count = 10
    """Most turns of the policy in a trajectory with an environment, tools or an agent. A trajectory that is not over by
    then is cut and counted as truncated. max_completion_length limits each turn."""
    max_trajectory_length: Count | None = None
    """Most tokens of a trajectory after its prompt, both sampled and given. With environment.history = split, the
    history counts again in each turn. null: as many as the model's context holds."""
    max_batch_rows: Count | Literal["auto"] = "auto"
    """Rows that are decoded together. More are faster, but their caches need more memory. auto: 64 on a CPU; on a GPU,
    between 64 and 512, as many as surely fit by the formulas of `posttrain plan`. A run keeps the number that was
    chosen (sizes.json)."""

    @property
    def rows_together(self) -> int:
        """`max_batch_rows`; that of a CPU where nothing was chosen."""
        return BATCH_ROWS if self.max_batch_rows == "auto" else self.max_batch_rows


class EnvironmentConfig(Part):
    """What answers the policy's turns. A bare string stands for `{function: string}`."""

    function: FunctionText = None
    """A class, `path/to/file.py:Class` or `package.module.Class`, with the methods reset(row), step(message), tools(),
    turn_reward(), reward(), metrics() and close(), of which step or tools alone is needed; or an environment of another
    library: `trl:path/to/file.py:Class`, `gymnasium:ID`, `verifiers:NAME`. null: tools alone answer."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments for the constructor, which is called for each trajectory. docs/environments-from-elsewhere.md
    lists those of gymnasium:."""
    timeout: Positive = 30.0
    """Seconds for each request to an environment or to tools. A late one is killed, with every process that it
    started."""
    attempts: Count = 3
    """How often a trajectory is started if its environment fails. After the last attempt it is unscored and counted by
    cause."""
    history: Literal["auto", "split", "keep"] = "auto"
    """What to do with a chat template that rewrites history, such as one that removes reasoning from earlier turns.
    split gives each turn the history as the template writes it; keep gives the history as it was sampled. auto refuses
    such a template."""
    max_result_length: Count = 4000
    """Most characters of a tool's result. A longer result is cut, and a note in it says so."""
    credit: Literal["trajectory", "turn", "token"] = "trajectory"
    """How rewards are credited. trajectory: the whole trajectory gets their sum. turn: each turn gets what it and later
    turns earned; group methods compare the same turns, and a critic's GAE goes from turn to turn. token: the reward of
    a turn goes to its last token; for algorithms that read rewards of tokens."""
    turn_discount: Share = 1.0
    """With credit = turn: the discount per turn on what later turns earn."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return expand("environment", given)


class AgentConfig(Part):
    """A program that asks an OpenAI-compatible endpoint: its turns are the policy's (docs/agents.md). A bare string
    stands for `{function: string}`."""

    function: FunctionText = None
    """A function of a row, sync or async, `path/to/file.py:function` or `package.module.function`. It is called once
    for each trajectory, in a process of its own, and returns a reward, messages or None."""
    command: list[Text] = []
    """A program and its arguments, instead of a function. It reads the row as JSON from standard input; the last line
    that it prints is the reward as JSON."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments of the function."""
    timeout: Positive = 120.0
    """Seconds that the agent may take from one answer to its next request, or to its end. A late agent is killed, with
    every process that it started."""
    attempts: Count = 3
    """How often a trajectory is started if its agent fails. After the last attempt it is unscored and counted by
    cause."""
    history: Literal["auto", "split", "keep"] = "auto"
    """What to do with a chat template that rewrites history; see environment.history."""
    sampling: Literal["refuse", "ignore"] = "refuse"
    """What happens to a request whose temperature, top_p, stop and so on differ from those of the run. refuse: it gets
    status 400. ignore: it is answered with the settings of the run."""
    host: Text = "127.0.0.1"
    """The address of this machine that the endpoint listens on. Unless it is a loopback address, other machines can
    reach the endpoint with the key of a session, which is sent unencrypted."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return expand("agent", given)

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.function is not None and self.command:
            raise ConfigError(
                given="agent.function and agent.command",
                allowed="one of the two",
                fix="Leave agent.command out.",
            )
        if self.settings and self.function is None:
            raise ConfigError(
                given="agent.settings, which are arguments of a function, but there is none",
                allowed="agent.settings with agent.function",
                fix="Give a command its settings as arguments, in agent.command.",
            )
        return self

    @property
    def is_given(self) -> bool:
        return self.function is not None or bool(self.command)


class RolloutConfig(Part):
    """Where completions are sampled."""

    engine: Literal["local", "vllm"] | EngineName = "local"
    """What samples: the local sampler, vLLM servers in their own environment (`posttrain engine install vllm`), or
    engines that another package publishes (docs/plugins.md)."""
    engines: Natural = 0
    """Processes that sample, each on its own cores. 0: the trainer's process samples. With `engine: vllm`: servers that
    the run starts on this machine."""
    url: list[Text] = []
    """Use these vLLM servers, which already run on this machine, instead of starting new ones: `http://127.0.0.1:8000`.
    docs/vllm.md has the command that starts one."""

    placement: Literal["auto", "shared", "beside"] = "auto"
    """Where vLLM servers run on GPUs. `shared`: the trainer and the server take turns on one GPU; the server sleeps
    while a step is trained. `beside`: each server has its own GPU. `auto`: beside if there are enough GPUs, else
    shared. On a CPU it changes nothing."""

    @property
    def num_engines(self) -> int:
        """Engines beside the trainer's process."""
        return len(self.url) or self.engines or int(self.engine != "local")

    keep_cache: bool = False
    """When the weights change, unfinished completions continue with the keys and values that the old weights computed.
    This is faster but only nearly right, because the log-probabilities then belong to no single policy. If false, keys
    and values are computed again."""
    deadline: Positive = 120
    """Seconds that an engine may take to sample a token or to load new weights. An engine that takes longer counts as
    lost, and its completions continue on another one. To start, it has 300 s or five times this limit."""


class ClusterConfig(Part):
    """A Ray cluster that holds engines, reward workers and, with `train.devices` above 1, the ranks of the trainer. A
    bare string stands for `{address: string}`."""

    address: Text = "auto"
    """`auto` is the cluster that this machine belongs to, or the one that RAY_ADDRESS names; `ray` means the same.
    `ray://HOST:10001` reaches a cluster from outside, `HOST:6379` reaches one through its head, and `local` starts Ray
    on this machine for this run only."""
    rank_cpus: Count = 1
    """Processors of each rank (`train.devices` above 1), which are also its threads. If the nodes have GPUs, each rank
    gets one, too."""
    engine_cpus: Count = 1
    """Processors of each engine, which are also its threads. If the trainer computes on a GPU, each engine gets a GPU,
    too."""
    reward_workers: Natural = 2
    """Processes of the cluster that compute rewards, with one processor each. 0: rewards run beside the trainer."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return expand("cluster", given)

    @field_validator("address")
    @classmethod
    def _is_address(cls, given: str) -> str:
        if given == "ray":
            return "auto"
        if given in ("auto", "local") or re.fullmatch(r"(ray://)?[^\s:/]+:[0-9]+", given):
            return given
        raise ConfigError(
            given=f"cluster.address = {given!r}",
            allowed="auto, local, ray://HOST:10001 or HOST:6379",
            fix="Set cluster = auto on a machine of the cluster; `ray status` says whether there is one.",
        )


class SampledPairsConfig(Part):
    """How pairs are made from the answers that the start model gives before training: one round of iterative DPO."""

    select: Literal["best_worst", "random"] = "best_worst"
    """How each prompt's answers are paired. best_worst: the best with the worst, then the second best with the second
    worst. random: any two with different scores, drawn at random."""
    min_gap: NonNegative = 0.0
    """Least difference of the two scores."""
    correct_at: Number | None = None
    """Pair only right answers with wrong ones; an answer with at least this score is right (iterative RPO). null: any
    two with different scores."""
    max_per_prompt: Count = 1
    """Most pairs of one prompt."""
    max_without: Share = 0.9
    """Share of prompts that may give no pair. More are an error that says why."""


class TrainConfig(Part):
    """The optimizer and the size of a step."""

    steps: Count = Field(examples=[200])
    """Steps: each samples (or takes) prompts_per_step prompts and learns from them."""
    stop_after_tokens: Count | None = None
    """End with the step in which the run's tokens reach this number, unless `steps` end it first. Prompts and
    completions of all rows that were sampled or taken count (metric num_tokens). null: no such limit."""
    stop_after_seconds: Positive | None = None
    """End with the step in which the seconds spent in steps reach this number, unless `steps` end it first. Evaluations
    do not count (metric time/step). On another machine, or after a resume, the run ends at another step. null: no such
    limit."""
    prompts_per_step: Count = 16
    """Prompts in one step, which has prompts_per_step * group_size rows. For supervised algorithms: rows in one
    step."""
    learning_rate: NonNegative = 1e-6
    """Highest learning rate of AdamW. The default suits reinforcement learning of all weights; LoRA needs about ten
    times more."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """How AdamW stores its two moments of each trained weight. adamw: in float32, 8 bytes. adamw_8bit: in 8 bits with a
    scale for each 256 numbers, 2.03 bytes, by torchao (`pip install "posttrain[cuda]"`). Weights stay float32. Use
    adamw_8bit to train all weights of a large model on a GPU: adapters have few moments, and on a CPU a step takes more
    memory than it saves."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up; linear and cosine fall to min_learning_rate_ratio of it."""
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
    """The gradient is clipped to this norm. 0 is off."""
    minibatches: Count = 1
    """Optimizer steps per batch: the rows of a step are divided among them."""
    epochs: Count = 1
    """Passes over each batch. With more than one update per batch, the policy ratios and their clipping take effect."""
    tokens_per_microbatch: Count | Literal["auto"] = "auto"
    """Tokens that go through the model in one forward and backward pass; a prefix that rows share counts once. It
    affects memory and speed, never the gradient. If memory runs out, the run halves it and computes the step again.
    auto: 2,048 on a CPU; on a GPU, between 256 and 32,768, as many as surely fit by the formulas of `posttrain plan`. A
    run keeps the number that was chosen (sizes.json)."""
    logprob_chunk_tokens: Count = 1024
    """Tokens whose logits are computed together, a part of the vocabulary at a time. If the head is not linear, the
    whole vocabulary is computed at once, which takes this number times the vocabulary of memory. It never changes a
    result."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """Compile the decoder layers of the trained model with torch.compile, for training and scoring passes. Compiling
    takes minutes at the start and saves operations in each pass. Numbers are the same except for rounding. It does not
    work with gradient_checkpointing or for mixtures of experts."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss; their rewards still count in the statistics of their group."""
    run_ahead: Natural | Literal["auto"] = 0
    """Steps by which sampling may run ahead of training; it raises throughput. 0 is synchronous training, 2 keeps most
    trainers busy, and `auto` finds the smallest number that does, by trial. Above 0 it needs engines in their own
    processes (`rollout.engines`)."""
    max_staleness: Natural = 0
    """Policy versions by which a trained token may be old; it bounds how far off-policy training is. Older tokens serve
    as context and are not trained; the rest of their completion is, and its reward counts in full. Set it to at least
    `run_ahead`; 8 with `run_ahead` 2 masks almost nothing."""
    publish_every: Count = 1
    """Steps between two hand-overs of weights to the sampler. Above 1, the steps in between learn from samples of an
    older policy, so that you can study off-policy corrections; the sampler then holds a copy of the model."""
    devices: Count | Literal["auto"] = 1
    """Processes that train together, each with its part of the weights and of the rows (FSDP2): one on each GPU, or
    several on a CPU for trials. `auto`: one per GPU, or one without a GPU. Inside a torchrun or srun job, the job's
    processes are used; with `cluster` they are on its nodes. Numbers change only by rounding."""
    shard: Count | Literal["auto"] = "auto"
    """Devices that share one copy of weights, gradients and moments; it divides `devices`. Fewer than all: each group
    of so many has a copy, and gradients are summed over all groups (hybrid sharding, HSDP). Choose the GPUs of a
    machine if machines are connected more slowly than GPUs; 1 shards nothing. auto: the GPUs of a machine if a copy
    surely fits on them and `posttrain plan` expects faster steps, else all. A run keeps the number that was chosen for
    so many devices (sizes.json)."""
    tensor: Count = 1
    """Neighbouring devices of a machine that divide each matrix and compute the same rows (tensor parallelism); it
    divides `devices`, and `shard` counts groups of so many. For models whose layers are too large for one device,
    or steps with fewer rows than devices. Llama, Qwen2 and Qwen3 models, without adapters."""
    cpu_offload: bool = False
    """Keep weights, gradients and moments of several devices in main memory (FSDP2's CPUOffloadPolicy). A block is
    copied to the GPU for its pass, and AdamW runs on the processor: far less GPU memory, far slower steps. On a CPU
    everything stays where it is."""
    restarts: Natural = 3
    """How often a job of several devices restarts from its newest checkpoint after it lost a rank."""
    rank_deadline: Positive = 600.0
    """Seconds that a rank waits for another one within a step. After that, the other one counts as lost."""
    max_sampling_rounds: Count = 10
    """Most rounds of sampling in one step, if the algorithm replaces groups without signal. More are an error."""

    @property
    def microbatch_tokens(self) -> int:
        """`tokens_per_microbatch`; that of a CPU where nothing was chosen."""
        return MICROBATCH_TOKENS if self.tokens_per_microbatch == "auto" else self.tokens_per_microbatch

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps with the rows of one step."""
        return self.epochs * self.minibatches

    @property
    def lead(self) -> int:
        """Steps by which sampling may be ahead at the beginning: one, where the lead is chosen later."""
        return 1 if self.run_ahead == "auto" else self.run_ahead

    @property
    def max_lag(self) -> int:
        """Policy versions by which a token may be older than the policy that learns from it."""
        return self.max_staleness + self.publish_every - 1


class EvaluationConfig(Part):
    """Held-out evaluation; every run has one before and one after."""

    every: Natural = 0
    """Steps between evaluations. 0: only before and after."""
    prompts: Count = 256
    """Most held-out prompts."""
    samples: Natural = 4
    """Completions per prompt; pass@k and majority vote go up to this k. 1 gives pass@1 alone, 0 greedy answers only."""
    temperature: NonNegative = 1.0
    """Temperature of the sampled answers; greedy answers have none."""
    max_completion_length: Count | None = None
    """Tokens. null: sampling.max_completion_length."""
    confidence: Annotated[float, Field(gt=0, lt=1), BeforeValidator(as_number)] = 0.95
    """Level of the intervals."""
    forgetting: PathText | None = None
    """Text or JSONL file. The model's loss on it is measured before and after training, to show what was forgotten."""
    other_prompts: PathText | None = None
    """File of prompts that have nothing to do with the training. The model answers 64 of them before and after
    training, greedily and in at most 64 tokens, to show whether it still answers as before. The report shows both
    answers."""
    max_drift: Positive = 0.2
    """Nats per token by which the former answers to other_prompts may become less likely. Beyond that, the verdict says
    that the model has forgotten."""
    writing: Natural = 8
    """Prompts that the model answers before and after training, greedily and in at most 64 tokens, to show whether it
    still writes. Its loss on a page of plain English is measured, too. A run that samples answers for its evaluations
    uses those; in any other run, `check` scores these answers. 0 is off."""


class CheckpointConfig(Part):
    """When to save, and how much to keep."""

    every: Natural = 50
    """Steps between checkpoints. 0: only the last."""
    keep: Count = 3
    """Checkpoints to keep. Older ones are deleted, except one from before a rise of disagreement (alarms)."""


class GuardConfig(Part):
    """Limits beyond which training on would give a wrong or useless model; the run stops and says why."""

    max_unscored: Share = 0.2
    """Share of completions in one step whose reward failed or timed out."""
    no_signal_steps: Count = 20
    """Steps in a row in which no group had two different rewards, or that had no gradient for another reason."""
    max_truncated: Share = 0.5
    """Share of completions in one step that were truncated; the first step above it warns."""
    truncated_steps: Count = 5
    """Steps in a row above max_truncated."""
    publish_tolerance: Positive | None = None
    """Nats per token that trainer and sampler may differ by after the weights were published. null: by precision."""
    stalled_minutes: Positive | None = 30.0
    """Minutes that may pass without a token, a micro-batch, a reward or a write to a file. Then the process ends and
    leaves the stack of each thread in stalled.txt; `posttrain resume` continues the run. null: no limit."""


class AlarmConfig(Part):
    """Alarms for rewards that are gamed. Each fires once in a run; null switches one off.

    docs/alarms.md has the formula of each, its false alarms and its delay in simulations.
    """

    enabled: bool = True
    """Switch all alarms on or off."""
    on_alarm: Literal["warn", "pause", "stop"] = "warn"
    """warn: warn and continue. pause: save a checkpoint and end; `posttrain resume` takes the alarm as seen and
    continues. stop: end where the alarm fired; a resumed run ends there again."""
    check_sample: Natural = 32
    """Accepted answers that the independent check looks at after each step's update. 0: evaluations only."""
    accepted_at: Number | None = None
    """An answer with at least this total reward counts as accepted. null: 1 if rewards are marks from 0 to 1, else the
    reward that the best quarter of the answers reached before training."""
    check_accepts_at: Number = 0.5
    """The check agrees with an answer if it scores at least this much. If there are several checks, all have to
    agree."""
    baseline_disagreement: Annotated[float, Field(gt=0, lt=1), BeforeValidator(as_number)] | None = None
    """Share of accepted answers that the check rejects in an honest run. null: the share measured on held-out answers
    before training, at least 1%."""
    disagreement_ratio: Ratio | None = 3.0
    """Factor by which the odds of disagreement grow in a gamed run (by ten points at most). The cumulative sum is tuned
    to detect it."""
    cusum_limit: Positive = 9.0
    """The alarm fires if the sum of log-likelihood ratios reaches this. At 7, one honest run in eight fires within 1000
    steps; at 9, one in fifty."""
    heldout_z: Positive | None = 4.0
    """Standard errors by which the last evaluations may lie below the best earlier ones."""
    heldout_window: Count = 3
    """Evaluations that heldout_z averages."""
    gap: Share | None = 0.1
    """How much training reward minus held-out score may grow."""
    reference_steps: Count = 5
    """Number of first steps that serve as the reference, and of last steps that are averaged and compared with them."""
    length_correlation: Share | None = 0.3
    """How far the rank correlation of reward and length, among answers to one prompt, may move away from 0. Prompts
    whose answers differ by fewer than 8 tokens do not count."""
    length_ratio: Ratio | None = 1.5
    """Factor by which answers may become longer, and by 8 tokens at least, while the held-out score does not rise."""
    truncated: Share | None = 0.2
    """Share of answers that may be truncated, if the start had less than half of that."""
    distinct_ratio: Share | None = 0.5
    """Share of its value at the start to which the distinct sequences of four tokens in an answer may fall."""
    compression_ratio: Ratio | None = 2.0
    """Factor by which answers may become more compressible."""
    template: Share | None = 0.3
    """How much the share of answers that begin (or end) with the same 30 tokens as answers to other prompts may
    grow."""
    concentration: Share | None = 0.3
    """How much the share of answers with the same value may grow, beyond the share of the most common gold answer of
    their prompts."""
    entropy_ratio: Share | None = 0.3
    """Share of its value at the start to which the entropy may fall while the held-out score does not rise."""
    kl_ratio: Ratio | None = 5.0
    """Factor by which the KL to the reference may jump within ten steps."""
    failures: Share | None = 0.02
    """How much the share of answers that were unscored, timed out, failed or were ambiguous may grow."""
    no_signal: Share | None = 0.8
    """Share of groups whose rewards may be all equal, unless the model has simply learned the task."""
