"""`explain` describes every algorithm under all its usual names, from its class's declarations. The pages agree."""

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.algorithms.compositions import SETTINGS as COMPOSITIONS
from tests.catalogue import catalogue

from posttrain.algorithms import ALGORITHMS, Algorithm, ComposedPolicyGradient, PolicyGradient
from posttrain.algorithms.composition.tables import TABLES
from posttrain.algorithms.declared import told_in
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.metrics import CORRECTION_METRICS
from posttrain.algorithms.off_policy.names import NAMED
from posttrain.errors import ConfigError
from posttrain.explain import Explanation, find, options_of_choices
from posttrain.explain import explain as explain_anew
from posttrain.explain.correction import correction_page, is_correction
from posttrain.explain.page import write_docs
from posttrain.types import Batch, Experience, Outputs, Tokens, count_totals

explain = cache(explain_anew)  # the tests only read the explanations
OPTIONS = options_of_choices()
PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
every_key = catalogue("key", ALGORITHMS)


@catalogue(
    "name, key",
    [
        ("grpo", "grpo"),
        ("GRPO", "grpo"),
        ("Group Relative Policy Optimization", "grpo"),
        ("dr_grpo", "dr_grpo"),
        ("drgrpo", "dr_grpo"),
        ("dr-grpo", "dr_grpo"),
        ("Dr. GRPO", "dr_grpo"),
        ("DrGRPO", "dr_grpo"),
        ("dr_grpo.py", "dr_grpo"),
        ("src/posttrain/algorithms/dr_grpo.py", "dr_grpo"),
        ("docs/algorithms/rloo.md", "rloo"),
        ("REINFORCE Leave-One-Out", "rloo"),
        ("supervised fine-tuning", "sft"),
    ],
)
def test_an_algorithm_is_known_by_many_names(name: str, key: str):
    assert find(name) == key


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gppo", r"^there is no algorithm 'gppo'\n  Did you mean ppo\? `posttrain explain` lists them all.$"),
        ("reinforced", r"Did you mean reinforce\?"),
        ("reinforce leave one uot", r"Did you mean rloo\?"),
        ("quicksort", r"allowed: a name such as grpo, .*`posttrain explain` lists"),
        ("", r"no algorithm ''"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_and_not_all_of_the_names(name: str, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        explain(name)


# What it tells


@pytest.mark.parametrize("name", ["decoupled_ppo", "Decoupled PPO", "decoupled", "docs/algorithms/decoupled_ppo.md"])
def test_decoupled_ppo_is_explained_like_an_algorithm_although_it_is_a_correction(name: str):
    told = explain(name)
    assert told.choices["correction"] == "decoupled"
    assert {setting.name: setting.default for setting in told.settings} == vars(NAMED["decoupled"]) | {}
    assert all(setting.doc and setting.source for setting in told.settings)
    assert "algorithm: {name: grpo, correction: decoupled}" in told.to_markdown()
    assert all(f"`{metric}`" in told.to_markdown() for metric in CORRECTION_METRICS)


def test_the_formula_is_that_of_the_file():
    formula = explain("grpo").formula
    assert "A_i = (R_i - mean(R)) / (std(R) + 1e-6)" in formula
    assert "Mean over the tokens of a completion, then over completions." in formula
    assert "arXiv" not in formula


def test_a_summary_of_a_few_lines_stands_on_top():
    for key in ALGORITHMS:
        told = explain(key)
        head = told.render().partition("\nFormula\n")[0]
        assert head.count("\n") < 15, key
        assert told.summary.split()[0] in head
        assert f"  in a config  algorithm: {key}\n" in head
        assert all(setting.name in head for setting in told.settings[:6])
        assert ("reference" in head.partition("in memory")[2]) == any(m.startswith("reference,") for m in told.models)


def test_settings_come_from_the_class():
    by_name = {s.name: s for s in explain("grpo").settings}
    clip_low = by_name["clip_low"]
    assert (clip_low.type, clip_low.default) == ("number >= 0", 0.2)
    text = "Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."
    assert clip_low.doc == text
    assert "TRL, verl, OpenRLHF" in clip_low.source
    assert by_name["dual_clip"].type == "number > 1, or none"
    assert by_name["kl_estimator"].type == "one of k2, k3, k1_corrected, k2_corrected, k3_corrected"
    types = {s.name: s.type for s in explain("reinforce").settings}
    assert types["gamma"] == "number >= 0 and <= 1"
    assert types["baseline"] == "one of none, batch_mean, moving_average"


@every_key
def test_every_setting_is_documented_and_its_default_has_a_source(key: str):
    for setting in explain(key).settings:
        assert setting.doc, setting.name
        assert setting.source, setting.name


def test_settings_of_its_own_come_first():
    assert [s.name for s in explain("rloo").settings] == [
        "clip_low",
        "clip_high",
        "kl_coef",
        "gamma",
        "entropy_coef",
        "correction",
    ]


@pytest.mark.parametrize(
    ("key", "needs"),
    [
        (
            "grpo",
            {
                "old": "always",
                "old_for_advantages": "with correction",
                "reference": "with kl_coef",
                "entropy": "with entropy_coef",
                "current_entropy": "with top_entropy_quantile",
            },
        ),
        (
            "rloo",
            {
                "old": "with clip_low and clip_high",
                "old_for_advantages": "with kl_coef or correction",
                "reference": "with kl_coef",
                "entropy": "with entropy_coef",
            },
        ),
        ("sft", {}),
    ],
)
def test_needs_and_the_settings_that_add_them_are_found_by_trying(key: str, needs: dict[str, str]):
    assert {need.name: need.when for need in explain(key).needs} == needs


def test_models_in_memory_follow_from_the_needs():
    assert any(model.startswith("reference") and "with kl_coef" in model for model in explain("grpo").models)
    assert explain("sft").models == ("policy, trained",)
    _, critic, reference, _ = explain("ppo").models
    assert critic.startswith("critic, trained")
    assert critic.endswith(": always")
    assert reference.endswith(": by default; decided by kl_coef")


def test_the_bias_of_grpo_is_stated():
    assert any("biased" in line and "0.90" in line for line in explain("grpo").differs)


# What is logged


def everything_on(cls: type[Algorithm]) -> list[Algorithm]:
    """Return the algorithm with each optional term switched on, and the open composition once per choice."""
    if cls is ComposedPolicyGradient:
        given = [beside | {setting: value} for setting, (beside, value) in COMPOSITIONS.items()]
        given.append({"ratio": "sequence_product", "trust_region": "truncated_negatives"})
        return [cls(**g | {"entropy_coef": 0.1, "correction": "tis"}) for g in given]
    values = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "kl_coef": 0.1, "entropy_coef": 0.1}
    names = {s.name for s in explain(cls.key).settings}
    lengths = {"max_completion_length": 8} if "max_completion_length" in names else {}
    weights = {"correction": "tis"} if issubclass(cls, PolicyGradient) else {}
    bounds = {"max_ratio": None} if {"max_ratio", "clip_high"} <= names else {}  # only one kind of bound is allowed
    return [cls(**{name: value for name, value in values.items() if name in names}, **lengths, **weights, **bounds)]


def logged(algorithm: Algorithm) -> set[str]:
    """Return the names of the metrics that it logs, given everything that it may need."""
    logprobs_BT = -torch.ones(4, 3, dtype=torch.float64)
    ones_BT = torch.ones_like(logprobs_BT)
    whole_step: set[str] = set()
    if algorithm.data_kind == "prompts":
        experience = Experience.from_rewards(
            torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64),
            rewards_KPG=torch.tensor([[[1.0, 0.0, 0.0, 1.0]]], dtype=torch.float64),
            greedy_rewards_P=torch.tensor([0.5], dtype=torch.float64),
            completion_mask_BT=torch.ones(4, 3),
            old_logprobs_BT=logprobs_BT,
            ref_logprobs_BT=logprobs_BT,
            sampling_logprobs_BT=logprobs_BT,
            teacher_logprobs_BT=logprobs_BT,
            values_BT=torch.zeros_like(logprobs_BT) if "values" in algorithm.needs else None,
        )
        batch = algorithm.to_batch(experience, algorithm.initial_state())
        whole_step = set(algorithm.step_metrics(experience, batch))
    elif algorithm.data_kind == "pairs":
        batch = Batch.from_pairs(torch.ones(4, 3), logprobs_BT if "reference" in algorithm.needs else None)
    elif algorithm.data_kind == "labels":
        batch = Batch.from_labels(torch.ones(4, 3), torch.tensor([1, 0, 1, 0]), logprobs_BT, torch.zeros(4))
    elif algorithm.data_kind == "ratings":
        batch = Batch.from_ratings(torch.ones(4, 3), ones_BT[:, 0])
    elif algorithm.data_kind == "steps":
        batch = Batch.from_steps(torch.ones(4, 3), ones_BT)
    else:
        tokens = Tokens(input_ids_BT=torch.ones(4, 3, dtype=torch.long), lengths_B=torch.full((4,), 3))
        mask_BT = torch.ones(4, 3, dtype=torch.bool)
        batch = Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(4), tokens=tokens)
    batch = algorithm.prepare(batch)
    rows = slice(batch.num_rows)  # if a group gives one pair, the batch has fewer rows than were sampled
    outputs = Outputs(
        logprobs_BT[rows],
        entropy_BT=ones_BT[rows],
        values_BT=ones_BT[rows],
        scores_B=ones_BT[rows, 0],
        scores_BT=ones_BT[rows],
        top1_BT=ones_BT[rows] > 0,
    )
    return whole_step | set(algorithm.loss(outputs, batch, count_totals(batch))[1])


@every_key
def test_each_logged_metric_has_a_formula_and_each_formula_is_logged(key: str):
    assert explain(key).metrics.keys() == set().union(*map(logged, everything_on(ALGORITHMS[key])))


def test_the_page_of_corrections_has_each_name_setting_and_metric():
    page = correction_page()
    assert told_in("options")["correction"].keys() == NAMED.keys()
    for name in [*NAMED, *(field.name for field in fields(Correction)), *CORRECTION_METRICS]:
        assert f"| `{name}` |" in page


def test_a_correction_is_not_taken_for_an_algorithm_nor_an_algorithm_for_a_correction():
    names = [name for name in ("correction", *NAMED) if is_correction(name)]
    assert names == ["correction", *(name for name in NAMED if name != "decoupled")]
    for name in names:
        with pytest.raises(ConfigError, match="there is no algorithm"):
            find(name)


def test_each_option_of_the_open_composition_is_told_and_no_other():
    assert {choice: set(told) for choice, told in OPTIONS.items()} == {c: set(table) for c, table in TABLES.items()}
    assert list(OPTIONS) == list(TABLES)
    assert all(about.strip() for told in OPTIONS.values() for about in told.values())


# How it is shown


@every_key
def test_the_text_fits_a_terminal_and_tells_everything(key: str):
    explanation = explain(key)
    text = explanation.render()
    assert max(map(len, text.splitlines())) <= 120
    for heading in ("Formula", "Use it when", "Avoid it when", "Settings", "Needs", "Models in memory", "Metrics"):
        assert f"\n{heading}\n" in text
    for name in [s.name for s in explanation.settings] + list(explanation.metrics) + list(explanation.choices):
        assert name in text


@every_key
def test_the_json_is_plain_and_complete(key: str):
    explanation = explain(key)
    shown = json.loads(json.dumps(explanation.to_json()))
    assert shown.keys() == Explanation.__dataclass_fields__.keys()
    assert shown["key"] == key
    assert [s["name"] for s in shown["settings"]] == [s.name for s in explanation.settings]


@every_key
def test_the_page_has_a_row_for_each_setting_and_metric(key: str):
    explanation = explain(key)
    page = explanation.to_markdown()
    for name in [s.name for s in explanation.settings] + list(explanation.metrics):
        assert f"| `{name}` |" in page
    assert "\\|A\\|" in page or "|A|" not in page


def test_the_open_composition_shows_what_each_option_is():
    explanation = explain("policy_gradient")
    text, page = explanation.render(), explanation.to_markdown()
    assert explanation.options == OPTIONS
    for choice, told in OPTIONS.items():
        assert f"\nOptions of {choice}\n" in text
        assert f"\n| {choice} | what it is |\n" in page
        for name, about in told.items():
            assert f"\n  - {name}: " in text
            assert f"\n| `{name}` | {about.replace('|', chr(92) + '|')} |\n" in page
    assert not explain("grpo").options


def test_the_committed_pages_are_the_generated_ones(tmp_path: Path):
    written = {path.name: path.read_text(encoding="utf-8") for path in write_docs(tmp_path)}
    committed = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert committed == written, "run: python -m posttrain.explain.page docs/algorithms"


def test_each_command_that_a_page_names_can_be_run():
    """Each `python -m NAME` in docs, README and tests names a module with a main guard or a package with `__main__`."""
    root = PAGES.parent.parent
    texts = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "tests").rglob("*.py")]
    command = re.compile(r"python -m ((?:posttrain|tests|benchmarks)[\w.]*\w)")
    named = {name for path in texts for name in command.findall(path.read_text("utf-8"))}
    assert {"posttrain.explain.page", "posttrain.config.page"} <= named
    for name in sorted(named):
        place = root / ("src" if name.startswith("posttrain") else "") / name.replace(".", "/")
        script = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        assert script.is_file(), name
        assert place.is_dir() or 'if __name__ == "__main__":' in script.read_text("utf-8"), name
