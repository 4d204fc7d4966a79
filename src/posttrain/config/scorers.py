"""The config sections for scorers: rewards, checks, and language models that judge.

`wrong_gate` finds gates of rewards that lead nowhere; `rewards/gates.py` explains gates.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from posttrain.config.values import (
    Count,
    FunctionText,
    Natural,
    NonNegative,
    Number,
    Part,
    PathText,
    Positive,
    Text,
    as_number,
    scorer,
)
from posttrain.errors import ConfigError


def wrong_gate(gates: Mapping[str, str | None]) -> ConfigError | None:
    """Return the first error in the gates: a gate that names no reward, or a cycle. `gates`: label -> gate's label.

    >>> wrong_gate({"math": None, "format": "math"})
    >>> wrong_gate({"a": "b", "b": "a"}).given
    'the gates of rewards go in a circle: a, b, a'
    """
    labels = list(gates)
    for label, gate in gates.items():
        if gate is not None and gate not in gates:
            close = difflib.get_close_matches(gate, labels, n=1)
            meant = f'; did you mean "{close[0]}"?' if close else ""
            return ConfigError(
                given=f'the gate of "{label}" is "{gate}", and no reward is called that{meant}',
                allowed=", ".join(other for other in labels if other != label) or "none: it is the only reward",
                fix="Name another reward by its label, which is its name unless `label` is set.",
            )
    for label in labels:
        path = [label]
        while (following := gates[path[-1]]) is not None and following not in path:
            path.append(following)
        if following is not None:
            circle = [*path[path.index(following) :], following]
            return ConfigError(
                given=f"the gates of rewards go in a circle: {', '.join(circle)}",
                allowed="gates that end at a reward without one",
                fix=f'Remove the gate of "{circle[-2]}".',
            )
    return None


class JudgeConfig(Part):
    """A language model that judges answers: behind an endpoint, from a folder, or the policy itself."""

    model: PathText = Field(examples=["policy"])
    """With url, the model's name at the endpoint. Without url, a model folder that is loaded here, or `policy`: the
    trained model with its current weights."""
    url: Text | None = None
    """Base URL of an OpenAI-compatible endpoint, for example http://localhost:8000/v1. null: the model runs here."""
    api_key_env: Text | None = None
    """Name of the environment variable that holds the endpoint's key. Never write the key itself into a file."""
    mode: Literal["pairwise", "score", "reference"] = "pairwise"
    """Kind of judgement. pairwise: compare each answer with the others of its group, in both orders; the score is the
    mean of 1 for a win, 1/2 for a tie and 0. score: grade from 0 to 5, divided by 5. reference: 1 if the answer means
    the same as a column of the row, else 0."""
    against: Text | None = None
    """Column with which answers are compared. null: in mode reference `answer`, in mode pairwise the rest of the
    group."""
    rubric: Text | None = None
    """Criteria of a good answer, which replace the built-in text."""
    template: PathText | None = None
    """Text file with the whole question, which replaces the built-in one. Its fields depend on the mode: {prompt} and
    {first}, {second}, or {completion}, or {completion}, {reference}; and {rubric}."""
    strip_reasoning: bool = True
    """Judge only the text after the last </think> of an answer."""
    max_comparisons: Count | None = None
    """Number of comparisons in one group, spread evenly; raised to half the group's size, so that each answer takes
    part in one. Scores then come from different opponents. null: all pairs."""
    samples: Count = 1
    """Number of judgements of each answer in mode score; their mean is the score. More than 1 need a temperature."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the judge. 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1), BeforeValidator(as_number)] = 1.0
    """top_p of the judge, with a temperature above 0. 1: no limit."""
    max_tokens: Count = 1024
    """Maximum number of tokens of a reply. The verdict is at its end."""
    concurrency: Count = 8
    """Number of simultaneous requests; for a model that runs here, number of questions that are decoded together."""
    timeout: Positive = 60.0
    """Time limit of one request to the endpoint, in seconds."""
    deadline: Positive = 600.0
    """Time limit of the requests of one call, which are those of the answers that have arrived, in seconds. Answers
    whose requests are open then are unscored."""
    retries: Natural = 4
    """Maximum number of retries of a request after a lost connection, a time-out, 429 or 5xx. The pauses grow, or
    follow the endpoint's request."""
    max_calls: Count | None = None
    """Budget of the run in requests. When it is spent, answers are unscored. null: no limit."""
    max_total_tokens: Count | None = None
    """Budget of the run in tokens, for questions and replies together. null: no limit."""
    cache: bool | PathText = True
    """Folder in which replies are cached, so that no question is asked twice. true: in POSTTRAIN_CACHE, or else in the
    user's cache folder. Replies of the policy are never cached."""
    request: dict[str, JsonValue] = {}
    """Additional fields of the request to the endpoint; null removes one of the usual fields."""

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
                given=f"judge.{name} = {getattr(self, name)} at judge.temperature = 0: all replies would be the same",
                allowed="a temperature above 0",
                fix=f"Set judge.temperature = 0.7, or remove judge.{name}.",
            )
        if self.url is None and self.model == "policy" and isinstance(self.cache, str):
            raise ConfigError(
                given=f"judge.cache = {self.cache!r}, but the policy's replies change with its weights and are lost",
                allowed="judge.cache for an endpoint or a model folder",
                fix="Remove judge.cache.",
            )
        return self

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        if self.api_key_env is not None and not re.fullmatch("[A-Z_][A-Z0-9_]*", self.api_key_env):
            raise ConfigError(  # the message must not show the given value: it may be the key
                given="judge.api_key_env is not the name of an environment variable",
                allowed="capital letters, digits and underscores",
                fix="Put the key into a variable (export JUDGE_API_KEY=...) and set judge.api_key_env = JUDGE_API_KEY.",
            )
        if self.url is not None and not re.fullmatch(r"https?://[^\s@/?#]+(/[^\s@?#]*)?", self.url):
            raise ConfigError(
                given="judge.url is not the base of an endpoint",
                allowed="http or https, host and path, without a name, a password or a query",
                fix="Set judge.url = http://localhost:8000/v1; a key is given by judge.api_key_env.",
            )
        return self

    @property
    def column(self) -> str | None:
        """Name of the column with which answers are compared."""
        return self.against or ("answer" if self.mode == "reference" else None)

    @property
    def compares_groups(self) -> bool:
        """True if an answer is compared only with the other answers to the same prompt."""
        return self.mode == "pairwise" and self.against is None


_ENDPOINT_SETTINGS = ("api_key_env", "timeout", "deadline", "retries", "max_calls", "max_total_tokens", "request")


class Scorer(Part):
    """Settings that rewards and checks share: exactly one of name, function, model and judge. A bare string stands for
    a name, or for a function if it has a dot."""

    name: Text | None = None
    """Built-in reward, such as math, code, exact_match or format (docs/rewards.md lists all), or a reward that a
    package publishes as an entry point (posttrain.rewards)."""
    function: FunctionText = None
    """Your own function: `path/to/file.py:function` or `package.module.function`."""
    model: PathText | None = None
    """Reward model: its folder, the folder of the run that trained it, or a name on the Hub; `reward_model` is the
    model of the section reward_model. It scores here, in batches."""
    judge: JudgeConfig | None = None
    """A language model that compares or grades answers."""
    timeout: Positive = 10.0
    """Time limit of one call, in seconds: for a whole batch if the function takes lists, else for one completion. After
    it, the call is killed and its completions are unscored, never 0. A reward model has no limit, and a judge
    has its own."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments for the reward. For a model, `normalize: true` gives scores mean 0 and standard deviation 1 on
    its own held-out answers. Do not put secrets here: read them from the environment."""
    label: Text | None = None
    """Name in metrics and tables. null: the name, the function's name, reward_model, or judge."""

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, given: Any) -> Any:
        return scorer(given)

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
                given=f"{strange[0]} = {getattr(self, strange[0])} with a judge, which has its own settings",
                allowed="weight and label",
                fix="Set judge.timeout." if strange[0] == "timeout" else f"Remove {strange[0]}.",
            )
        return self

    @property
    def metric_name(self) -> str:
        """The label, or its default. The reward is logged as rewards/<metric_name>/mean."""
        if self.judge is not None:
            return self.label or "judge"
        if self.model is not None:
            return self.label or "reward_model"
        return self.label or self.name or str(self.function).replace(":", ".").rpartition(".")[2]


def _default(part: Part, name: str) -> Any:
    return type(part).model_fields[name].default


class GateConfig(Part):
    """The score that another reward must reach before this one counts. A bare label stands for a score of 1 or more."""

    label: Text = Field(examples=["math"])
    """Label of the other reward, which is its name unless a label is set."""
    at_least: Number = 1.0
    """Score that the other reward has to reach, before its weight and its own gate."""


def _as_gate(given: Any) -> Any:
    return {"label": given} if isinstance(given, str) else given


class RewardConfig(Scorer):
    """One reward: exactly one of name, function, model and judge."""

    weight: Number = 1.0
    """Factor in the sum of the rewards; negative for a penalty."""
    gate: Annotated[GateConfig | None, BeforeValidator(_as_gate)] = None
    """Another reward that must reach a score for this one to count; otherwise this one contributes 0. `gate: math`, or
    `gate: {label: math, at_least: 0.5}`. A function with a parameter `correct` gets the result instead. null: it always
    counts."""


class CheckConfig(Scorer):
    """One independent check, written like a reward. It has no weight: checks are shown one by one and never summed."""

    @property
    def weight(self) -> float:
        """Weight for code that builds a check like a reward."""
        return 1.0

    @property
    def gate(self) -> None:
        """Gate for code that builds a check like a reward. A check is never summed, so it has no gate."""
        return
