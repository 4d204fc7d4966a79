"""A test of the audit itself: it finds and names each planted defect, and raises nothing against honest rewards."""

from typing import Any

import pytest
from tests.rewards.audit.rows import few_answers, planted, sums, tasks, weak_tasks

from posttrain.errors import SandboxUnavailable
from posttrain.rewards import Reward
from posttrain.rewards.audit import CHECKS, audit, subject
from posttrain.rewards.pool import WorkerPool

EXPECTED: list[tuple[str, str, str]] = [
    ("false_accepts", "accepting:stuffing", "fail"),
    ("false_accepts", "accepting:last_box", "fail"),
    ("false_accepts", "accepting:substring", "fail"),
    ("false_accepts", "accepting:last_number", "fail"),
    ("false_accepts", "accepting:empty", "fail"),
    ("false_accepts", "accepting:tolerant", "fail"),
    ("false_accepts", "accepting:thinking", "fail"),
    ("false_accepts", "accepting:generous", "fail"),
    ("false_rejects", "accepting:literal_minded", "fail"),
    ("false_rejects", "accepting:never", "fail"),
    ("constant_guess", "accepting:zero_is_always_right", "fail"),
    ("contract", "returning:nan", "fail"),
    ("contract", "returning:text", "fail"),
    ("contract", "returning:short", "fail"),
    ("contract", "returning:raising", "fail"),
    ("malformed_rows", "returning:swallows_as_0", "fail"),
    ("malformed_rows", "returning:swallows_as_1", "fail"),
    ("malformed_rows", "returning:turns_into_text", "fail"),
    ("malformed_rows", "returning:takes_any", "fail"),
    ("determinism", "changing:by_order", "fail"),
    ("determinism", "changing:by_batch", "fail"),
    ("determinism", "changing:by_hash", "fail"),
    ("determinism", "changing:by_clock", "fail"),
    ("determinism", "changing:by_process", "fail"),
    ("determinism", "changing:by_count", "fail"),
    ("determinism", "changing:noisy", "fail"),
    ("noise", "changing:noisy", "fail"),
    ("safety", "running:alarm", "fail"),
    ("safety", "running:locked", "fail"),
    ("safety", "running:blocking", "fail"),
    ("safety", "running:shared", "fail"),
    ("latency", "running:slow", "warn"),
    ("hostile_inputs", "running:hangs", "fail"),
    ("hostile_inputs", "running:dies", "fail"),
    ("length_slope", "running:longer_is_better", "fail"),
    ("length_slope", "honest:brevity", "warn"),
    ("format_slope", "running:bold_is_better", "fail"),
    ("side_effects", "leaking:writes_a_file", "warn"),
    ("side_effects", "leaking:opens_a_socket", "warn"),
    ("side_effects", "leaking:starts_a_process", "warn"),
    ("side_effects", "leaking:sets_the_environment", "fail"),
    ("side_effects", "leaking:seeds_random", "fail"),
    ("side_effects", "leaking:changes_the_folder", "fail"),
    ("side_effects", "leaking:evaluates", "fail"),
    ("side_effects", "leaking:raises_the_limit", "fail"),
    ("side_effects", "programs:in_process", "fail"),
    ("code_attacks", "programs:in_process", "fail"),
    ("code_attacks", "programs:exit_code", "fail"),
]
"""The check that has to name each reward, and its expected status."""

ANOTHER = {
    *(("determinism", "changing:noisy"), ("side_effects", "programs:in_process")),
    *("accepting:last_box", "accepting:substring", "accepting:last_number", "accepting:tolerant"),
    *("accepting:thinking", "accepting:generous", "accepting:never"),
    *("returning:text", "returning:short", "returning:swallows_as_1", "returning:turns_into_text"),
    *("returning:takes_any", "changing:by_batch", "changing:by_clock", "changing:by_process"),
    *("leaking:opens_a_socket", "leaking:seeds_random", "leaking:changes_the_folder", "leaking:raises_the_limit"),
    *("programs:exit_code", "running:hangs", "running:locked", "running:blocking"),
    *("accepting:empty", "returning:raising", "changing:by_hash", "changing:by_count"),
    *("leaking:starts_a_process", "leaking:evaluates", "running:shared"),
}
"""Slow cases: the same check finds another reward above in the same way. Rewards that hang are in test_parts.py."""

FORM = "#### GOLD"
TOLD: dict[str, dict[str, Any]] = {
    "latency": {"step_seconds": 1.0, "completions_per_step": 256, "form": FORM},
    "noise": {"stochastic": True, "form": FORM},
    **{check: {"form": FORM} for check in ("malformed_rows", "contract", "length_slope", "format_slope")},
    **{check: {"form": FORM} for check in ("determinism", "safety", "side_effects", "hostile_inputs")},
}
"""The arguments without which a check means nothing or makes too many calls. The checks of answers look for the form
themselves."""
HANGS = 1.0
"""Deadline in seconds for a call of a grader that attack programs hang."""


def is_slow(check: str, name: str) -> bool:
    return name in ANOTHER or (check, name) in ANOTHER


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit with few rows and one worker, except in slow tests: a defect shows in each row."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(subject, "MOST_ROWS", 16)
        monkeypatch.setattr(WorkerPool.__init__, "__defaults__", (1, *WorkerPool.__init__.__defaults__[1:]))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("check", "name", "status"),
    [pytest.param(*each, marks=[pytest.mark.slow] if is_slow(*each[:2]) else []) for each in EXPECTED],
    ids=[f"{c}-{n}" for c, n, _ in EXPECTED],
)
def test_a_planted_defect_is_found_by_its_check(check, name, status):
    is_code = name.startswith("programs")
    reward = Reward(function=planted(name), timeout=HANGS if check == "code_attacks" else 10.0)
    told = {} if is_code else TOLD.get(check, {})
    finding = audit(reward, tasks() if is_code else sums(), only=[check], **told)[check]
    assert finding.status == status, finding
    assert finding.examples, "a finding needs an example to be useful"


@pytest.mark.slow
def test_data_with_one_frequent_answer_are_found():
    finding = audit(planted("honest:marked"), few_answers(), only=["constant_guess"])["constant_guess"]
    assert finding.status == "fail"
    assert finding.measured == pytest.approx(0.4)
    assert "'4'" in finding.text


@pytest.mark.slow
def test_a_judge_that_likes_a_key_is_found_and_one_in_a_thousand_is_forgiven():
    finding = audit(planted("accepting:polite"), sums(), kind="judge", only=["false_accepts"])["false_accepts"]
    assert finding.status == "fail"
    assert any("judge key ':'" in example for example in finding.examples)
    assert finding.limit == "fail > 1 %"


@pytest.mark.usefixtures("small")
def test_groups_without_signal_are_found():
    given = {"completions": [["#### 1"] * 4, ["nothing"] * 4, ["#### 77"] * 4], "form": FORM}
    finding = audit(planted("honest:marked"), sums(), **given, only=["group_signal"])["group_signal"]
    assert (finding.status, finding.measured) == ("warn", 1.0)


@pytest.mark.slow
def test_tests_that_catch_nothing_are_found():
    finding = audit(planted("programs:in_process"), weak_tasks(), only=["mutation_score"])["mutation_score"]
    assert finding.status == "warn"
    assert finding.measured is not None
    assert finding.measured < 0.5


@pytest.mark.slow
def test_a_grader_that_does_not_run_the_tests_is_found():
    """The audit's own program passes every test, even the impossible ones."""
    finding = audit(planted("programs:looks_fine"), tasks(), kind="code", only=["mutation_score", "code_attacks"])
    assert finding["mutation_score"].measured == 0.0
    assert "passes a test that expects something else" in finding["mutation_score"].examples[0]


def test_every_check_has_a_planted_defect_that_is_not_slow():
    elsewhere = {"group_signal", "mutation_score"}
    assert {check for check, name, _ in EXPECTED if not is_slow(check, name)} | elsewhere == {c.name for c in CHECKS}


HONEST: list[tuple[str, dict[str, Any]]] = [
    (planted("honest:marked"), {}),
    (planted("honest:marked_batch"), {}),
    (planted("honest:marked_async"), {}),
    (planted("honest:opened"), {"kind": "format"}),
    (planted("honest:brevity"), {"kind": "length"}),
    ("math", {}),
    ("numeric", {}),
    ("gsm8k", {}),
    ("exact_match", {}),
]
ALIKE = (
    "math",
    "numeric",
    "gsm8k",
    *(f"honest:{name}" for name in ("marked", "marked_batch", "marked_async", "opened", "brevity")),
)
"""Variants of rewards above that are audited in full."""


@pytest.mark.parametrize(
    ("reward", "options"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] if each[0] in (*ALIKE, *map(planted, ALIKE)) else [])
        for each in HONEST
    ],
    ids=[reward.rpartition("/")[2] for reward, _ in HONEST],
)
def test_an_honest_reward_passes_every_check(reward, options):
    """The reward stays within the limits of every audit. A busy machine may stall once; a slow reward stalls each
    time."""
    for _ in range(3):
        report = audit(reward, sums(), **options)
        if report.ok:
            return
    pytest.fail(report.render())


@pytest.mark.slow
def test_our_grader_of_programs_passes_every_check():
    try:
        report = audit("code", tasks())
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    assert report.ok, report.render()
    assert report.kind == "code"
    assert report["code_attacks"].status == "ok"
    assert report["mutation_score"].status == "ok"


@pytest.mark.slow
def test_a_function_of_this_process_is_audited_as_far_as_it_can_be():
    calls = []

    def counted(completion, answer):
        calls.append(completion)
        return float(completion.endswith(f"#### {answer}"))

    report = audit(counted, sums(), only=["contract", "side_effects", "safety", "determinism"])
    assert report.named("skipped") == ["safety", "side_effects"]
    assert "cannot be started in another one" in report["safety"].text
    assert "not in new processes" in report["determinism"].text
