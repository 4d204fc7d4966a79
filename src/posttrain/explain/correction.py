"""Generator of the page docs/algorithms/correction.md, from the class of a correction and its named presets."""

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

Every policy-gradient algorithm takes a correction: by name, `algorithm: {name: grpo, correction: tis}`, or by settings,
`correction: {action: mask, low: 0.5, high: 5}`. On the command line you can change one setting of a named correction:
`algorithm.correction.high=3`.

The policy that sampled (mu) and the policy that the trainer computes differ by numerics (another engine, another
precision, other experts) and by age (`train.run_ahead`). The anchor is the centre of the ratio:

    policy / mu  =  policy / anchor  *  anchor / mu         the ratio of the algorithm, and the weight of the correction

Only the first factor has a gradient. The second multiplies the policy's part of the loss, never the KL or the entropy
bonus.

- **decoupled** (anchor = trainer): the trainer scores the tokens once more before several updates of a batch. The
  trust region is around this policy, and the weight corrects the rest.
- **bypass** (anchor = sampler, action = none): the ratio itself is policy / mu. It needs no extra pass, but the
  difference between engines uses up the clip. A weight in addition would count it twice and is refused (RULE 27).
- **none**: the difference is ignored.

`auto`, the default, means none while the sampler computes in float32 with the newest weights. Otherwise the algorithm
decides: `tis` for most; `bypass` for CISPO, VESPO, TOPR and DPPO, whose loss is a bounded weight already (RULE 30), and
for Kimi k1.5 and K2, whose log-ratio is to the policy that sampled.

If the reward is for the whole completion, the product of the token ratios is exact, but its variance grows with the
length. A weight per token is bounded but biased. For long answers, truncate or mask per token; for mixtures of
experts, prefer to mask.
"""

DECOUPLED = """\
    mu          the policy that sampled a token, some versions old; its log-probabilities are recorded when sampling
    prox        the policy at the start of this update: old_logprobs, computed by the trainer
    u = policy / prox         the ratio, with gradient          w = prox / mu         a weight, without
    L = -w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A)     w = 0 where it exceeds high

PPO's clip has two jobs: to correct the bias of old data and to keep the update small. Centred at a stale mu, it does
the second badly. Here the weight does the first, and the clip around prox does the second. With prox = mu this is
PPO."""
"""The formula of decoupled PPO: a correction that people search for as an algorithm."""


def correction_page() -> str:
    """Return the page as Markdown: introduction, names, settings and metrics."""
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
        "Measured before anything is truncated. `is/*` are logged if weights are applied.",
        _table(("metric", "formula"), metrics),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def is_correction(name: str) -> bool:
    """Is this correction on the page? `decoupled` has its own page, decoupled_ppo."""
    return name == "correction" or (name in NAMED and name != "decoupled")


def correction_settings() -> list[tuple[str, str, str]]:
    """Return (name, allowed values, documentation) of each setting of a correction."""
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
