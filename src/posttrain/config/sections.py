"""The sections of a configuration, except the algorithm and the scorers.

The text under a field is its documentation in all places that describe the setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    AgentText,
    BelowOne,
    Count,
    EnvironmentText,
    Natural,
    NonNegative,
    Number,
    Part,
    PathText,
    Positive,
    Share,
    SourceText,
    Text,
    as_number,
    by_folder,
    by_source,
    expand,
)
from posttrain.errors import ConfigError
from posttrain.plugins import published

MICROBATCH_TOKENS, BATCH_ROWS = 2048, 64
"""Values of `auto` on a CPU, on which available memory does not decide."""
ENGINES = ("local", "vllm")
"""Names of the built-in engines."""


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
    """A section that can be written as a bare string, which stands for `{path: string}`."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return by_folder(expand("model", given))


class ModelConfig(ByPath):
    """The model that is trained. A bare string stands for `{path: string}`."""

    path: PathText = Field(examples=["Qwen/Qwen3-0.6B"])
    """A Hugging Face folder or name, or `tiny:TASK` for the built-in tiny model of a task, which learns on a CPU
    (`tiny-moe:TASK`: a mixture of experts; `tiny-wide:TASK`: with wider heads, for a vLLM server)."""
    gguf_file: Text | None = None
    """Name of a GGUF file inside `path` from which the weights are read. They are dequantised."""
    revision: Text | None = None
    """Branch, tag or commit of a model on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Enable it only for authors whom you trust."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention implementation: PyTorch's fused kernel, or plain matrix products with a softmax in float32."""
    chat_template: PathText | None = None
    """Path of a Jinja file that replaces the tokenizer's chat template. null keeps the tokenizer's own."""
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Variables of the chat template, for example enable_thinking."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the computation; master weights are always float32. auto is bfloat16 on a GPU that supports it. On a
    CPU auto is bfloat16 if the model has a million parameters or more, the processor supports it, and a short
    measurement shows it to be 1.2 times as fast as float32; else float32. If a run changes its weights by so little
    that bfloat16 shows few of the changes, auto on a CPU is float32, too; with bfloat16, or on a GPU, the run warns.
    float32 never computes in a lower precision. A frozen teacher or reference holds its linear layers in this
    precision, which changes no number. The choice is saved with the run and shown at its start."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device for training and sampling. auto is the GPU if there is one."""


class FrozenModelConfig(ByPath):
    """A frozen model in addition to the trained one."""

    path: PathText = Field(examples=["Qwen/Qwen3-4B"])
    """A Hugging Face folder or name, or `tiny:TASK`. It must have the same tokenizer as `model`, and when a run is
    resumed the same weights as before."""
    revision: Text | None = None
    """Branch, tag or commit on the Hub. null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Enable it only for authors whom you trust."""


class TeacherConfig(FrozenModelConfig):
    """A frozen model that judges each token of the policy. A bare string stands for `{path: string}`.

    Its attention, precision and device are those of `model`.
    """


class ReferenceConfig(FrozenModelConfig):
    """The frozen model that a KL term or a preference loss keeps the policy close to. A bare string stands for
    `{path: string}`.

    Its attention, precision and device are those of `model`.
    """


class LoRAConfig(Part):
    """Low-rank adapters on a frozen base model. The base model itself is the reference, so there is no second copy."""

    rank: Count = 16
    """Rank of the adapters: each adapted matrix of n x m gets rank * (n + m) trained numbers."""
    alpha: Count = 32
    """Scale of the adapters: their output is multiplied by alpha / rank."""
    dropout: BelowOne = 0.0
    """Probability of dropping an input of the adapters in training. Sampling and scoring use no dropout."""
    target_modules: Literal["all-linear"] | Annotated[list[Text], Field(min_length=1)] = "all-linear"
    """Names of the adapted modules. all-linear: every linear layer except the output head."""


class CriticConfig(Part):
    """The critic of an algorithm that has one: it predicts the reward before each token."""

    kind: Literal["auto", "separate", "shared", "lora"] = "auto"
    """Architecture of the critic. separate: a separate model; shared: a head on the policy; lora: a second adapter on
    the policy's frozen base. auto: lora if the policy has adapters, else separate."""
    path: PathText | None = None
    """Initial weights of a separate critic: a reward model (`reward_model` names the one that the section trains), a
    language model, or the folder of a run. null: the policy's initial weights."""
    rank: Count = 16
    """Rank of the critic's adapter (kind lora)."""
    alpha: Count = 32
    """Scale of the critic's adapter: its output is multiplied by alpha / rank (kind lora)."""
    learning_rate: NonNegative | None = None
    """Peak learning rate of the critic, which follows the policy's schedule. null: ten times train.learning_rate, as in
    verl (1e-5 and 1e-6) and OpenRLHF (9e-6 and 1e-6)."""
    warmup_steps: Natural = 0
    """Number of first steps in which only the critic learns and the policy does not change."""
    max_grad_norm: NonNegative = 1.0
    """Norm to which the critic's gradient is clipped, separately from the policy's. 0: no clipping."""

    def kind_beside(self, lora: LoRAConfig | None) -> Literal["separate", "shared", "lora"]:
        """Return the kind, with auto resolved for a policy with these adapters."""
        if self.kind == "auto":
            return "separate" if lora is None else "lora"
        return self.kind


class DataConfig(Part):
    """The prompts or examples for training and for evaluation."""

    train: SourceText = Field(examples=["train.jsonl"])
    """Paths or globs of JSONL, JSON, CSV or Parquet files, Hugging Face datasets (`name` or `name:config`), or
    `task:NAME`."""
    eval: SourceText | None = None
    """Sources of the held-out rows for evaluations, in the form of `train`. null: see eval_fraction."""
    auxiliary: SourceText | None = None
    """Examples for an algorithm that adds a next-token loss to each update (kimi_k2 with ptx_coef): prompt and
    completion, messages or text. Sources are in the form of `train`."""
    auxiliary_rows: Count = 16
    """Rows of `auxiliary` in each update."""
    split: Text = "train"
    """Split of a Hugging Face dataset that `train` names."""
    eval_split: Text = "test"
    """Split of a Hugging Face dataset that `eval` names."""
    eval_fraction: BelowOne = 0.1
    """Share of the training rows that are held out if `eval` is null. A task has its own held-out rows. The seed
    selects the rows."""
    hold_out: Literal["prompts", "rows"] = "prompts"
    """Unit that `eval_fraction` holds out. prompts: all rows with the same prompt together. rows: single rows, also if
    other rows with their prompt are trained, as in runs of earlier versions."""
    columns: dict[Text, Text] = {}
    """Mapping from our column names to those of `train` and `eval`, for example {chosen: better, rejected: worse}.
    Common names are recognised without this setting. A file that already has a column with our name keeps it."""
    prompt: Text | None = None
    """Column of the prompt, or a template over columns: "{Body} {Question}". null: prompt, question, problem or
    instruction."""
    system_prompt: str | None = None
    """System message for each prompt that has none."""
    chat: Literal["auto"] | bool = "auto"
    """Wrap plain prompts as a user turn. auto wraps them if the tokenizer has a chat template."""
    train_on: Literal["all", "last"] = "all"
    """Trained answers of a conversation: all of them, or only the last one."""
    answer: Text | None = None
    """Column of the gold answer, which rewards get as `answer`. null: answer, Answer, solution, ground_truth or
    gold."""
    max_prompt_length: Count | None = None
    """Maximum length of a prompt, in tokens. Longer prompts are dropped and counted, never truncated. null: no separate
    limit."""
    max_length: Count | None = None
    """Maximum length of an example, or of each answer of a pair with its prompt, in tokens. Longer rows are dropped and
    counted, never truncated. null: the context length of the model."""
    max_rows: Count | None = None
    """Maximum number of rows to use."""
    streaming: Literal["auto"] | bool = "auto"
    """Tokenise each row in the step that uses it, instead of all rows before the run. auto streams from 20 MB of text.
    The run is the same, bit for bit, unless a row proves unusable during the run. Ratings and steps always stay in
    memory."""
    part: Text | None = None
    """One of several equal parts of the training rows, in their order: 2/3 is the second third. sDPO (arXiv:2403.19270)
    trains on one part after the other. The held-out rows stay the same."""
    stratify: Text | None = None
    """Column of the prompts, such as answer, by which steps are stratified: each step has every value in the same share
    as all rows. Without it, a step may by chance have more of one frequent answer, which teaches the model to give that
    answer to every prompt. Rows without the column count as one more value."""
    max_dropped: Share = 0.5
    """Largest share of rows that may be dropped. A larger share is an error."""

    @model_validator(mode="before")
    @classmethod
    def _rows_have_a_source(cls, given: Any) -> Any:
        for name, rows in given.items() if isinstance(given, Mapping) else ():
            if name not in cls.model_fields and hasattr(rows, "column_names"):  # a split of a dataset
                by_source(rows)
        return by_source(given)

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
    """How completions are sampled in training."""

    group_size: Count = 8
    """Completions per prompt (G)."""
    max_completion_length: Count = 256
    """Maximum length of a completion, in tokens, including EOS. Longer completions are cut and counted as truncated."""
    temperature: NonNegative = 1.0
    """Divisor of the logits, both in sampling and in training. 0 is greedy, for evaluation only."""
    top_p: Annotated[float, Field(gt=0, le=1), BeforeValidator(as_number)] = 1.0
    """Total probability of the most likely tokens to sample from. 1: no limit."""
    top_k: Natural = 0
    """Number of the most likely tokens to sample from. 0: no limit."""
    min_p: BelowOne = 0.0
    """Smallest probability of a token to sample, as a share of the most likely token's probability. 0: no limit."""
    stop: list[Text] = []
    """Stop strings: texts that end a completion. Rewards do not see the text that ended it."""
    max_turns: Count = 10
    """Maximum number of the policy's turns in a trajectory with an environment, tools or an agent. A trajectory that is
    not over by then is cut and counted as truncated. max_completion_length limits each turn."""
    max_trajectory_length: Count | None = None
    """Maximum number of tokens of a trajectory after its prompt, both sampled and given. With environment.history =
    split, the history counts again in each turn. null: the context length of the model."""
    max_batch_rows: Count | Literal["auto"] = "auto"
    """Rows that are decoded together. More rows are faster, but their KV caches need more memory. auto: 64 on a CPU; on
    a GPU, between 64 and 512, as many as certainly fit by the formulas of `posttrain plan`. A run keeps the number that
    was chosen (sizes.json)."""

    @property
    def rows_together(self) -> int:
        """`max_batch_rows`, or its value on a CPU if auto is not resolved."""
        return BATCH_ROWS if self.max_batch_rows == "auto" else self.max_batch_rows


class EnvironmentConfig(Part):
    """The environment that answers the policy's turns. A bare string stands for `{function: string}`."""

    function: EnvironmentText = None
    """A class, `path/to/file.py:Class` or `package.module.Class`, with the methods reset(row), step(message), tools(),
    turn_reward(), reward(), metrics() and close(). Only step or tools is required. Or an environment of another
    library: `trl:path/to/file.py:Class`, `gymnasium:ID`, `verifiers:NAME`. null: only tools answer."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments for the constructor, which is called for each trajectory. docs/environments-from-elsewhere.md
    lists the arguments for gymnasium:."""
    timeout: Positive = 30.0
    """Time limit of each request to an environment and of each call of a tool, in seconds. A late one is killed, with
    every process that it started."""
    attempts: Count = 3
    """Maximum number of attempts at a trajectory if its environment fails. After the last attempt it is unscored and
    counted by cause."""
    history: Literal["auto", "split", "keep"] = "auto"
    """Treatment of a chat template that rewrites history, such as one that removes reasoning from earlier turns. split:
    each turn sees the history as the template writes it; keep: each turn sees the history as it was sampled; auto:
    such a template is refused."""
    max_result_length: Count = 4000
    """Maximum number of characters of a tool's result. A longer result is cut, and a note in it says so."""
    credit: Literal["trajectory", "turn", "token"] = "trajectory"
    """Credit assignment. trajectory: the whole trajectory gets the sum of the rewards. turn: each turn gets its own and
    later rewards; group methods compare the same turns of trajectories, and a critic's GAE runs over turns. token: the
    reward of a turn goes to its last token, for algorithms that read token rewards."""
    turn_discount: Share = 1.0
    """Discount factor per turn on the rewards of later turns, with credit = turn."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return expand("environment", given)


class AgentConfig(Part):
    """A program that sends requests to an OpenAI-compatible endpoint, which the policy answers (docs/agents.md). A bare
    string stands for `{function: string}`."""

    function: AgentText = None
    """A function of a row, sync or async, `path/to/file.py:function` or `package.module.function`. It is called once
    for each trajectory, in its own process, and returns a reward, messages or None."""
    command: list[Text] = []
    """A program and its arguments, instead of a function. It reads the row as JSON from standard input; the last line
    that it prints is the reward as JSON."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments of the function."""
    timeout: Positive = 120.0
    """Time limit of the agent, in seconds, from one answer to its next request or to its end. A late agent is killed,
    with every process that it started."""
    attempts: Count = 3
    """Maximum number of attempts at a trajectory if its agent fails. After the last attempt it is unscored and counted
    by cause."""
    history: Literal["auto", "split", "keep"] = "auto"
    """Treatment of a chat template that rewrites history; see environment.history."""
    sampling: Literal["refuse", "ignore"] = "refuse"
    """Treatment of a request whose sampling parameters (temperature, top_p, stop and so on) differ from those of the
    run. refuse: it gets status 400. ignore: it is answered with the settings of the run."""
    host: Text = "127.0.0.1"
    """Address of this machine on which the endpoint listens. Unless it is a loopback address, other machines can reach
    the endpoint with the key of a session, which is sent unencrypted."""

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
                given="agent.settings, which are arguments of a function, without agent.function",
                allowed="agent.settings with agent.function",
                fix="Give a command its settings as arguments, in agent.command.",
            )
        return self

    @property
    def is_given(self) -> bool:
        return self.function is not None or bool(self.command)


class RolloutConfig(Part):
    """The engines that sample completions."""

    engine: Literal["local", "vllm"] | EngineName = "local"
    """Sampling engine: the local sampler, vLLM servers in their own environment (`posttrain engine install vllm`), or
    an engine that another package publishes (docs/plugins.md)."""
    engines: Natural = 0
    """Number of sampling processes, each on its own cores. 0: the trainer's process samples. With `engine: vllm`:
    number of servers that the run starts on this machine."""
    url: list[Text] = []
    """Addresses of vLLM servers that already run on this machine, such as `http://127.0.0.1:8000`. The run then starts
    none. docs/vllm.md has the command that starts one."""

    placement: Literal["auto", "shared", "beside"] = "auto"
    """Placement of vLLM servers on GPUs. `shared`: the trainer and the server take turns on one GPU; the server sleeps
    while a step is trained. `beside`: each server has its own GPU. `auto`: beside if there are enough GPUs, else
    shared. It has no effect on a CPU."""

    @property
    def num_engines(self) -> int:
        """Number of engines outside the trainer's process."""
        return len(self.url) or self.engines or int(self.engine != "local")

    keep_cache: bool = False
    """Keep the KV cache when the weights change: unfinished completions continue with the keys and values of the old
    weights. This is faster but only approximately right, because the log-probabilities then belong to no single policy.
    If false, keys and values are computed again."""
    deadline: Positive = 120
    """Time limit of an engine, in seconds, to sample a token or to load new weights. An engine that takes longer counts
    as lost, and its completions continue on another one. The time limit to start is five times as
    long, but at least 300 s."""


class ClusterConfig(Part):
    """A Ray cluster that holds engines, reward workers and, with `train.devices` above 1, the ranks of the trainer. A
    bare string stands for `{address: string}`."""

    address: Text = "auto"
    """Address of the cluster. `auto`, or `ray`, is the cluster that this machine belongs to, or the one that
    RAY_ADDRESS names. `ray://HOST:10001` reaches a cluster from outside, `HOST:6379` reaches one through its head, and
    `local` starts Ray on this machine for this run only."""
    rank_cpus: Count = 1
    """Number of processors, and of threads, of each rank (`train.devices` above 1). If the nodes have GPUs, each rank
    also gets a GPU."""
    engine_cpus: Count = 1
    """Number of processors, and of threads, of each engine. If the trainer computes on a GPU, each engine also gets a
    GPU."""
    reward_workers: Natural = 2
    """Number of processes in the cluster that compute rewards, with one processor each. 0: rewards are computed on the
    trainer's machine."""

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
    """How pairs are made from answers that the initial model samples before training: one round of iterative DPO."""

    select: Literal["best_worst", "random"] = "best_worst"
    """Pairing of each prompt's answers. best_worst: the best with the worst, then the second best with the second
    worst. random: random pairs with different scores."""
    min_gap: NonNegative = 0.0
    """Smallest difference of the two scores of a pair."""
    correct_at: Number | None = None
    """Score from which an answer is right. Right answers are paired only with wrong ones (iterative RPO). null: any two
    answers with different scores form a pair."""
    max_per_prompt: Count = 1
    """Maximum number of pairs of one prompt."""
    max_without: Share = 0.9
    """Largest share of prompts without a pair. A larger share is an error that names the cause."""


class TrainConfig(Part):
    """The optimizer and the size of a step."""

    steps: Count = Field(examples=[200])
    """Number of training steps. Each step samples or reads prompts_per_step prompts and learns from them."""
    stop_after_tokens: Count | None = None
    """Number of tokens after which the run ends, at the end of the step that reaches it, unless `steps` ends it first.
    It counts the prompts and completions of all rows that were sampled or read (metric num_tokens). null: no limit."""
    stop_after_seconds: Positive | None = None
    """Time spent in steps, in seconds, after which the run ends, at the end of the step that reaches it, unless `steps`
    ends it first. Evaluations do not count (metric time/step). On another machine, or after a resume, the run ends at a
    different step. null: no limit."""
    prompts_per_step: Count = 16
    """Number of prompts in one step, which has prompts_per_step * group_size rows. For supervised algorithms: number of
    rows in one step."""
    learning_rate: NonNegative = 1e-6
    """Peak learning rate of AdamW. The default suits reinforcement learning of all weights; LoRA needs about ten times
    more."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """Storage of AdamW's two moments of each trained weight. adamw: float32, 8 bytes. adamw_8bit: 8 bits with a scale
    for each 256 numbers, 2.03 bytes, by torchao (`pip install "posttrain[cuda]"`). Weights stay float32. Use adamw_8bit
    to train all weights of a large model on a GPU. Adapters have few moments, and on a CPU a step takes more memory
    than it saves."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after the warm-up. linear and cosine decay to min_learning_rate_ratio * learning_rate.
    They are laid out over `steps`: a run that stop_after_tokens or stop_after_seconds ends sooner does not reach their
    end, and `resume --steps` moves the run to another place in the schedule. The run reports both."""
    warmup_steps: Natural = 0
    """Number of steps in which the learning rate rises from 0."""
    min_learning_rate_ratio: Share = 0.0
    """Final learning rate of the schedule, as a share of learning_rate."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay per unit of learning rate, on matrices only."""
    adam_beta1: BelowOne = 0.9
    """Decay rate of AdamW's mean of gradients."""
    adam_beta2: BelowOne = 0.999
    """Decay rate of AdamW's mean of squared gradients."""
    adam_eps: Positive = 1e-8
    """Constant that is added to the root in AdamW's denominator."""
    max_grad_norm: NonNegative = 1.0
    """Norm to which the gradient is clipped. 0: no clipping."""
    minibatches: Count = 1
    """Number of optimizer steps in one pass over a batch. The rows of a step are divided among them."""
    epochs: Count = 1
    """Number of passes over each batch. With more than one update per batch, ratios and their clipping take effect."""
    tokens_per_microbatch: Count | Literal["auto"] = "auto"
    """Number of tokens in one forward and backward pass; a prefix that rows share counts once. It affects memory and
    speed, never the gradient. If memory runs out, the run halves it and computes the step again. auto: 2,048 on a CPU;
    on a GPU, between 256 and 32,768, as many as certainly fit by the formulas of `posttrain plan`. A run keeps the
    number that was chosen (sizes.json)."""
    logprob_chunk_tokens: Count = 1024
    """Number of tokens whose logits are computed together, for a part of the vocabulary at a time. If the head is not
    linear, they are computed for the whole vocabulary together, which takes memory for this number times the
    vocabulary. It never changes a result."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and about a third more time."""
    compile: bool = False
    """Compile the decoder layers of the trained model with torch.compile, for training and scoring passes. Compiling
    takes minutes at the start and saves operations in each pass. Numbers are the same except for rounding. It does not
    work with gradient_checkpointing or for mixtures of experts."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss. Their rewards still count in the statistics of their group."""
    run_ahead: Natural | Literal["auto"] = 0
    """Number of steps by which sampling may run ahead of training, which raises throughput. 0 is synchronous training,
    2 keeps most trainers busy, and `auto` finds the smallest sufficient number by trial. Above 0 it needs engines in
    their own processes (`rollout.engines`)."""
    max_staleness: Natural = 0
    """Largest staleness of a trained token, in policy versions; it bounds how far off-policy training is. Older tokens
    serve as context and are not trained; the rest of their completion is, and its reward counts in full. Set it to at
    least `run_ahead`; 8 with `run_ahead` 2 masks almost nothing."""
    publish_every: Count = 1
    """Number of steps between two transfers of weights to the sampler. Above 1, the steps in between learn from samples
    of an older policy, so that you can study off-policy corrections; the sampler then holds a copy of the model."""
    devices: Count | Literal["auto"] = 1
    """Number of processes that train together, each with its part of the weights and of the rows (FSDP2): one on each
    GPU, or several on a CPU for trials. `auto`: one per GPU, or one without a GPU. Inside a torchrun or srun job, the
    job's processes are used; with `cluster` they are on its nodes. Results change only by rounding."""
    shard: Count | Literal["auto"] = "auto"
    """Number of devices that share one copy of weights, gradients and moments; it divides `devices`. If it is smaller
    than `devices`, each group of this size has a copy, and gradients are summed over all groups (hybrid sharding,
    HSDP). Choose the number of GPUs per machine if machines are connected more slowly than GPUs; 1 shards nothing.
    auto: the GPUs of a machine if a copy certainly fits on them and `posttrain plan` expects faster steps, else all
    devices. A run keeps the number that was chosen for this number of devices (sizes.json)."""
    tensor: Count = 1
    """Number of neighbouring devices of a machine that divide each matrix and compute the same rows (tensor
    parallelism). It divides `devices`, and `shard` counts groups of this size. Use it for models whose layers are too
    large for one device, or for steps with fewer rows than devices. It supports Llama, Qwen2 and Qwen3 models, without
    adapters."""
    cpu_offload: bool = False
    """Keep weights, gradients and moments of several devices in main memory (FSDP2's CPUOffloadPolicy). A block is
    copied to the GPU for its pass, and AdamW runs on the processor. This takes far less GPU memory and makes steps far
    slower. It has no effect on a CPU."""
    restarts: Natural = 3
    """Maximum number of restarts of a job of several devices from its newest checkpoint after it lost a rank."""
    rank_deadline: Positive = 600.0
    """Time that a rank waits for another one within a step, in seconds. After that, the other one counts as lost."""
    max_sampling_rounds: Count = 10
    """Maximum number of sampling rounds in one step, if the algorithm replaces groups without signal. More rounds are
    an error."""

    @property
    def microbatch_tokens(self) -> int:
        """`tokens_per_microbatch`, or its value on a CPU if auto is not resolved."""
        return MICROBATCH_TOKENS if self.tokens_per_microbatch == "auto" else self.tokens_per_microbatch

    @property
    def updates_per_batch(self) -> int:
        """Number of optimizer steps with the rows of one step."""
        return self.epochs * self.minibatches

    @property
    def lead(self) -> int:
        """Number of steps by which sampling may be ahead at the start; 1 if auto is not resolved."""
        return 1 if self.run_ahead == "auto" else self.run_ahead

    @property
    def max_lag(self) -> int:
        """Largest age of a token, in policy versions, relative to the policy that learns from it."""
        return self.max_staleness + self.publish_every - 1


class EvaluationConfig(Part):
    """Held-out evaluation. Every run is evaluated before and after training."""

    every: Natural = 0
    """Number of steps between evaluations. 0: only before and after training."""
    prompts: Count = 256
    """Maximum number of held-out prompts."""
    samples: Natural = 4
    """Number of completions per prompt; pass@k and majority vote go up to this k. 1: only pass@1; 0: only greedy
    answers."""
    temperature: NonNegative = 1.0
    """Temperature of the sampled answers. Greedy answers use none."""
    max_completion_length: Count | None = None
    """Maximum length of a completion, in tokens. null: sampling.max_completion_length."""
    confidence: Annotated[float, Field(gt=0, lt=1), BeforeValidator(as_number)] = 0.95
    """Confidence level of the intervals."""
    forgetting: PathText | None = None
    """Text or JSONL file on which the model's loss is measured before and after training, to detect forgetting."""
    other_prompts: PathText | None = None
    """File of prompts that are unrelated to the training. The model answers 64 of them before and after training,
    greedily and in at most 64 tokens, to show whether it still answers as before. The report shows both answers."""
    max_drift: Positive = 0.2
    """Largest loss of log-probability of the former answers to other_prompts, in nats per token. Beyond it, the verdict
    says that the model has forgotten."""
    writing: Natural = 8
    """Number of prompts that the model answers before and after training, greedily and in at most 64 tokens, to show
    whether it still writes. Its loss on a page of plain English is also measured. A run that samples answers for its
    evaluations uses those; in any other run, `check` scores these answers. 0: off."""


class CheckpointConfig(Part):
    """When to save, and how much to keep."""

    every: Natural = 50
    """Number of steps between checkpoints. 0: only the last one."""
    keep: Count = 3
    """Number of checkpoints to keep. Older ones are deleted after each save, or before it if the disk is full, except
    one from before a rise of disagreement (alarms)."""


class GuardConfig(Part):
    """Limits beyond which further training would give a wrong or useless model. The run stops and says why."""

    max_unscored: Share = 0.2
    """Largest share of the completions sampled for a step, trained or not, whose reward failed or timed out."""
    no_signal_steps: Count = 20
    """Number of consecutive steps in which no group had two different rewards, in sum or in a turn, or that had no
    gradient for another reason."""
    max_truncated: Share = 0.5
    """Largest share of truncated completions in one step. The first step above it warns."""
    truncated_steps: Count = 5
    """Number of consecutive steps above max_truncated."""
    publish_tolerance: Positive | None = None
    """Largest difference of trainer and sampler after the weights were published, in nats per token. null: it depends
    on the precision."""
    stalled_minutes: Positive | None = 30.0
    """Largest number of minutes without a token, a micro-batch, a reward or a write to a file. After that, the process
    ends and writes the stack of each thread to stalled.txt; `posttrain resume` continues the run. null: no limit."""


class AlarmConfig(Part):
    """Alarms for reward hacking. Each fires once in a run; null switches an alarm off.

    docs/alarms.md has the formula of each, its false alarms and its delay in simulations.
    """

    enabled: bool = True
    """Switch all alarms on or off."""
    on_alarm: Literal["warn", "pause", "stop"] = "warn"
    """Action of an alarm. warn: warn and continue. pause: save a checkpoint and end; `posttrain resume` marks the alarm
    as seen and continues. stop: end at the step of the alarm; a resumed run ends there again."""
    check_sample: Natural = 32
    """Number of accepted answers that the independent check scores after each step's update. 0: only in evaluations."""
    accepted_at: Number | None = None
    """Total reward from which an answer counts as accepted. null: 1 if rewards are marks from 0 to 1, else the reward
    that the best quarter of the answers reached before training."""
    check_accepts_at: Number = 0.5
    """Score of the check from which it agrees with an answer. If there are several checks, all have to agree."""
    baseline_disagreement: Annotated[float, Field(gt=0, lt=1), BeforeValidator(as_number)] | None = None
    """Share of accepted answers that the check rejects in an honest run. null: the share measured on held-out answers
    before training, at least 1%."""
    disagreement_ratio: Ratio | None = 3.0
    """Factor by which the odds of disagreement grow in a run that games its reward (by ten points at most). The
    cumulative sum is tuned to detect it."""
    cusum_limit: Positive = 9.0
    """Limit of the sum of log-likelihood ratios at which the alarm fires. At 7, one honest run in eight fires within
    1000 steps; at 9, one in fifty."""
    heldout_z: Positive | None = 4.0
    """Largest drop of the last evaluations below the best earlier ones, in standard errors."""
    heldout_window: Count = 3
    """Number of evaluations that heldout_z averages."""
    gap: Share | None = 0.1
    """Largest growth of the difference between training reward and held-out score."""
    reference_steps: Count = 5
    """Number of first steps that serve as the reference, and of last steps that are averaged and compared with them."""
    length_correlation: Share | None = 0.3
    """Largest move away from 0 of the rank correlation of reward and length, among answers to one prompt. Prompts whose
    answers differ by fewer than 8 tokens do not count."""
    length_ratio: Ratio | None = 1.5
    """Largest growth factor of the answers' length, if it grows by at least 8 tokens and the held-out score does not
    rise."""
    truncated: Share | None = 0.2
    """Largest share of truncated answers, if the share at the start was below half of that."""
    distinct_ratio: Share | None = 0.5
    """Smallest share of distinct sequences of four tokens in an answer, relative to its value at the start."""
    compression_ratio: Ratio | None = 2.0
    """Largest growth factor of the compression ratio of the answers."""
    template: Share | None = 0.3
    """Largest growth of the share of answers that begin (or end) with the same 30 tokens as answers to other
    prompts."""
    concentration: Share | None = 0.3
    """Largest growth of the share of answers with the same value, beyond the share of the most common gold answer of
    their prompts."""
    entropy_ratio: Share | None = 0.3
    """Smallest entropy, relative to its value at the start, while the held-out score does not rise."""
    kl_ratio: Ratio | None = 5.0
    """Largest factor by which the KL to the reference may jump within ten steps."""
    failures: Share | None = 0.02
    """Largest growth of the share of answers that were unscored, timed out, failed or were ambiguous."""
    no_signal: Share | None = 0.8
    """Largest share of groups whose rewards are all equal, unless the model has simply learned the task."""
