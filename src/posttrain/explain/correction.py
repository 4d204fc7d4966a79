"""The page docs/algorithms/correction.md, written from the record of a correction and from the names that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from pydantic import TypeAdapter

from posttrain.algorithms.declared import told_in
from posttrain.algorithms.off_policy.correction import DEFAULTS, Correction
from posttrain.algorithms.off_policy.metrics import CORRECTION_METRICS
from posttrain.algorithms.off_policy.names import NAMED

_HEAD = """\
<!-- generated from the classes: python -m posttrain.explain.page docs/algorithms -->

# Off-policy correction

`algorithm: {name: grpo, correction: tis}`, or settings: `correction: {action: mask, low: 0.5, high: 5}`; every
policy-gradient algorithm takes it. From the command line one setting of a name can be changed by itself:
`algorithm.correction.high=3`.

The policy that sampled (mu) and the one that the trainer computes differ by numerics (another engine, another
precision, other experts) and by age (`train.run_ahead`). With the centre of the ratio called the anchor,

    policy / mu  =  policy / anchor  *  anchor / mu         the ratio of the algorithm, and the weight of the correction

only the first has a gradient; the second multiplies the policy's part of the loss, never the KL or the entropy bonus.

- **decoupled** (anchor = trainer): the trainer scores the tokens once more before several updates of a batch; the
  trust region stands around that, and the weight makes up for the rest.
- **bypass** (anchor = sampler, action = none): the ratio itself is policy / mu, no pass is needed, and the difference
  between engines uses up the clip. A weight beside it would count it twice and is refused (RULE 27).
- **none**: the difference is ignored.

`auto`, the default, is none while the sampler computes in float32 with the newest weights, and otherwise what the
algorithm says: `tis` for most, `bypass` for CISPO, VESPO, TOPR and DPPO, whose loss is a bounded weight already (RULE
30), and for Kimi k1.5 and K2, whose log-ratio is to whatever sampled.

With a reward of the whole completion the product of the token ratios is exact, and its variance grows with the
length; a weight per token is bounded and biased. For long answers: truncate or mask per token; for mixtures of
experts rather mask.
"""

DECOUPLED = """\
    mu          the policy that sampled a token, some versions old; its log-probabilities are recorded then
    prox        the policy at the start of this update: old_logprobs, computed by the trainer
    u = policy / prox         the ratio, with gradient          w = prox / mu         a weight, without
    L = -w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A)     w = 0 where it exceeds high

PPO's clip has two jobs: to undo the bias of old data and to keep the update small. Centred at a stale mu it does the
second badly. Here the weight does the first and the clip, around prox, the second. With prox = mu it is PPO."""
"""The formula of decoupled PPO, which is a correction that people look for as an algorithm."""


def correction_page() -> str:
    """Markdown: what it is, the names, the settings, the metrics."""
    about = told_in("options")["correction"]
    names = [(f"`{name}`", _settings_of(value), about[name]) for name, value in NAMED.items()]
    defaults = {field.name: field.default for field in fields(Correction)}
    settings = [(f"`{name}`", kind, f"`{_value(defaults[name])}`", doc) for name, kind, doc in correction_settings()]
    metrics = [(f"`{name}`", formula) for name, formula in CORRECTION_METRICS.items()]
    parts = [
        _HEAD,
        "## Names",
        _table(("name", "stands for", "what it is"), names),
        "## Settings",
        _table(("setting", "allowed", "default", "meaning"), settings),
        "## Metrics",
        "Measured before anything is truncated; `is/*` where weights are applied.",
        _table(("metric", "formula"), metrics),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def is_correction(name: str) -> bool:
    """Does the page tell of it? `decoupled` has a page of its own, decoupled_ppo."""
    return name == "correction" or (name in NAMED and name != "decoupled")


def correction_settings() -> list[tuple[str, str, str]]:
    """(name, what is allowed, its documentation) of each setting of a correction."""
    schema = TypeAdapter(Correction).json_schema()["properties"]
    return [(f.name, _allowed(schema[f.name]), _one_line(schema[f.name])) for f in fields(Correction)]


def _settings_of(correction: Correction) -> str:
    given = {name: value for name, value in vars(correction).items() if name in DEFAULTS and value != DEFAULTS[name]}
    return ", ".join(f"`{name}: {_value(value)}`" for name, value in given.items())


def _allowed(schema: dict) -> str:
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema.get("type") == "array":
        return "a list of rules: score, low, high"
    return "true, false" if schema.get("type") == "boolean" else "a number, or none"


def _one_line(schema: dict) -> str:
    return " ".join(schema["description"].split())


def _value(value: object) -> str:
    words = {None: "none", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
