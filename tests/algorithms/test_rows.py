"""Each named algorithm equals its row: `policy_gradient`, built from the choices on its card, computes the same
numbers.

The tests cover every policy-gradient algorithm. A new algorithm must agree with its row, or give the reason here why it
has none.
"""

from dataclasses import fields

import torch
from tests.algorithms.variants import VARIANTS
from tests.catalogue import THOROUGH, catalogue
from torch import Tensor

from posttrain.algorithms import ALGORITHMS, ComposedPolicyGradient, PolicyGradient
from posttrain.algorithms.composition.tables import TABLES
from posttrain.algorithms.declared import CHOICES
from posttrain.testing.steps import gradients, make_batch, make_experience, make_outputs
from posttrain.types import Experience, count_totals

FAMILY = {key: cls for key, cls in ALGORITHMS.items() if issubclass(cls, PolicyGradient)}
RENAMED = {("topr", "baseline"): "constant"}
"""Choices of the composition that share a name with a number in an algorithm."""
BESIDE_THE_ROW = {
    "ppo": {"kl_target": None, "whiten_rewards": False},
    "kimi_k2": {"ptx_coef": 0.0},
    "rloo": {"gamma": 1.0},
    "reinforce_plus_plus_baseline": {"gamma": 1.0},
    "distillation": {"divergence": "reverse_kl"},
    **{key: {"dynamic_sampling": True} for key in ("dapo", "clip_cov", "kl_cov")},
}
"""Settings that are not part of the loss, or that are one value of a choice, and their value in the row."""
FIXED = {"reinforce_plus_plus_baseline": {"kl_estimator": "k2"}}
"""Settings of the composition that are fixed in the algorithm."""
OF_A_CHOICE = (
    "baseline_decay", "length_coef", "correct_at", "token_budget", "budget_penalty", "whiten_advantages",
)  # fmt: skip
"""Settings that another choice would read, or that make a choice (`moved_off_the_default`)."""


def as_row(algorithm: PolicyGradient) -> ComposedPolicyGradient:
    """Return `policy_gradient` with the algorithm's row, and with those of its settings that the row reads."""
    choices = {name: option for name, option in algorithm.card.choices.items() if name != "correction"}
    choices |= moved_off_the_default(algorithm)
    read = {name for choice, option in choices.items() for name in TABLES[choice][option].reads}
    given = {"entropy_coef": algorithm.entropy_coef, "correction": algorithm.correction, **FIXED.get(algorithm.key, {})}
    for field in fields(algorithm):
        name = RENAMED.get((algorithm.key, field.name), field.name)
        value = getattr(algorithm, field.name)
        if name in read and value is not None:
            given[name] = value
        elif field.name in BESIDE_THE_ROW.get(algorithm.key, {}):
            assert value == BESIDE_THE_ROW[algorithm.key][field.name], f"{field.name} has no place in a row"
        elif field.name not in (*given, *choices, *OF_A_CHOICE):
            assert value in (None, 0.0), f"{algorithm.key}.{field.name} = {value} is read by none of {choices}"
    return ComposedPolicyGradient(**choices, **given)


def moved_off_the_default(algorithm: PolicyGradient) -> dict[str, str]:
    """Return the choices that the algorithm's settings make, in addition to those on its card."""
    choices: dict[str, str] = {}
    if isinstance(baseline := getattr(algorithm, "baseline", None), str):
        choices["baseline"] = baseline
    if algorithm.card.choices["trust_region"] == "none" and getattr(algorithm, "clip_low", None) is not None:
        choices |= {"ratio": "token", "trust_region": "clip"}
        if algorithm.key == "rloo":
            choices |= {"ratio": "sequence_product", "aggregation": "sequence_mean"}
    if getattr(algorithm, "length_coef", 0.0):
        choices["shaping"] = "length"
    if getattr(algorithm, "token_budget", None) is not None:
        choices["shaping"] = "budget"
    if getattr(algorithm, "max_negative_divergence", 0.5) is None:
        choices["filter"] = "none"
    if getattr(algorithm, "whiten_advantages", True) is False:
        choices["normalisation"] = "none"
    return choices


UNREPRESENTABLE = {
    "ppo everything": "an adaptive KL coefficient and whitened rewards are PPO's own",
}
"""Variants with a setting that no row has, and the reason."""
VARIANTS_OF_THE_FAMILY = {
    name: a
    for name, a in VARIANTS.items()
    if isinstance(a, PolicyGradient) and not isinstance(a, ComposedPolicyGradient) and name not in UNREPRESENTABLE
}


def numbers(algorithm: PolicyGradient, experience: Experience) -> list[Tensor]:
    """Return advantages, loss and gradient. The policy has moved since `old`, and the sampler is a third policy."""
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
    assert batch.advantages_BT is not None
    return [batch.advantages_BT, batch.completion_mask_BT.double(), loss, *gradients(outputs, loss).values()]


@catalogue("seed", [0, 1, 2] if THOROUGH else [0])
@catalogue("name", VARIANTS_OF_THE_FAMILY)
def test_each_algorithm_is_its_row(name: str, seed: int):
    algorithm, experience = VARIANTS_OF_THE_FAMILY[name], make_experience(seed)
    row = as_row(algorithm)
    actual, expected = numbers(row, experience), numbers(algorithm, experience)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert actual[3].abs().max() > 0


def test_every_algorithm_has_a_variant_that_is_tried():
    tried = {algorithm.key for algorithm in VARIANTS_OF_THE_FAMILY.values()}
    assert set(FAMILY) - tried == {"policy_gradient"}


@catalogue("key", FAMILY)
def test_the_card_names_choices_that_exist(key: str):
    choices = FAMILY[key].card.choices
    assert tuple(choices) == CHOICES
    assert choices["correction"] == "auto"
    assert all(choices[name] in TABLES[name] for name in TABLES)


@catalogue("name", VARIANTS_OF_THE_FAMILY)
def test_a_row_asks_for_what_its_algorithm_asks_for(name: str):
    algorithm = VARIANTS_OF_THE_FAMILY[name]
    row, signal = as_row(algorithm), getattr(algorithm, "dynamic_sampling", False)
    assert row.needs - {"signal"} == algorithm.needs - {"signal"}
    assert ("signal" in algorithm.needs) == signal
    assert row.auto_correction == algorithm.auto_correction
    assert row.group_size_needed == algorithm.group_size_needed
    assert row.learns_from_rewards == algorithm.learns_from_rewards
