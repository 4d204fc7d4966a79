"""The parts of the audit: spellings, cheats, changed programs, limits, and the calls of a reward."""

import ast
import doctest
import importlib
import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.rewards.audit.planted.honest import marked, number
from tests.rewards.audit.rows import planted, sums

from posttrain.config import load_config
from posttrain.errors import DataError, RewardError
from posttrain.rewards import Reward
from posttrain.rewards.audit import CHECKS, AuditReport, Finding, audit, audit_config, samples
from posttrain.rewards.audit.cheats import Target, cheats, made_for
from posttrain.rewards.audit.checks import Check
from posttrain.rewards.audit.finding import Measured, quote
from posttrain.rewards.audit.mutants import mutants
from posttrain.rewards.audit.programs import reference_of
from posttrain.rewards.audit.renderings import FORMS, WORK, fill, number_of, spellings, written
from posttrain.rewards.audit.speed import HOSTILE
from posttrain.types import Prompt
from posttrain.verify.mathematics.places import final_of

STORIES = Path(__file__).parents[4] / "shared" / "data" / "models" / "stories260K"
NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9).map(Fraction), st.integers(-(10**6), 10**6).map(lambda n: Fraction(n, 1000))
)


@given(NUMBERS)
def test_every_spelling_of_a_number_has_its_value(value):
    """The reader of the spelling is independent of its writer."""
    for name, text in spellings(written(value), "hash").items():
        said = text.rpartition("#### ")[2]
        if not said.startswith("\\frac"):
            assert number(said) == value, name


@given(NUMBERS)
def test_a_number_is_written_and_read_back(value):
    assert number_of(written(value)) == value


@given(NUMBERS, st.sampled_from(sorted(FORMS)))
def test_no_cheat_states_the_gold_as_its_one_answer(value, form):
    gold = written(value)
    target = Target(prompt="How many?", gold=gold, form=form, others=("-777777777", "888888888", "999999999"))
    for name, text in made_for(target, cheats()):
        assert text.strip() != fill(form, gold).strip(), name
        if form == "hash" and number(gold) is not None:
            assert marked(text, gold) == 0.0, name


def test_there_are_twelve_spellings_of_a_number_that_has_thousands():
    assert len(spellings("1234", "boxed")) == 12
    assert spellings("Paris", "bare")["as it is"] == "Paris"


@pytest.mark.parametrize(
    ("gold", "final"),
    [
        ("1 + 1 = 2\n#### 1,234", "1,234"),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (7.0, "7"),
        (0.5, "0.5"),
        (" A ", "A"),
    ],
)
def test_the_final_answer_is_found_in_what_the_data_holds(gold, final):
    assert final_of(gold) == final


def test_the_line_of_reasoning_holds_nothing_that_could_be_an_answer():
    assert not any(character.isdigit() for character in WORK)
    assert not set("\\$#:{}") & set(WORK)


def test_changed_programs_are_programs_and_differ():
    program = "def f(a, b):\n    if a < b:\n        return a + 1\n    return [b] * 2 == a and True\n"
    found = mutants(program)
    assert len(found) == len(set(found)) >= 6
    for text in found:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(program))
    assert mutants("def f(:") == []
    assert len(mutants(program, 3)) <= 3


@pytest.mark.parametrize("part", ["finding", "renderings", "mutants", "speed"])
def test_the_examples_in_the_code_are_right(part):
    found = doctest.testmod(importlib.import_module(f"posttrain.rewards.audit.{part}"))
    assert found.attempted > 0
    assert found.failed == 0


def limited(**limits: object) -> Check:
    return Check(name="x", asks="?", run=lambda subject: Measured(text=""), **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "value", "status"),
    [
        (limited(warn=0.1, fail=0.3), 0.1, "ok"),
        (limited(warn=0.1, fail=0.3), 0.11, "warn"),
        (limited(warn=0.1, fail=0.3), 0.31, "fail"),
        (limited(fail=0.0), float("nan"), "fail"),
        (limited(fail=0.8, at_least=True), 0.8, "ok"),
        (limited(fail=0.8, at_least=True), 0.79, "fail"),
        (limited(warn=0.2), 1.0, "warn"),
    ],
)
def test_a_measure_is_held_against_its_limits(check, value, status):
    assert check.status(Measured(value=value, text=""), "exact") == status


def test_a_check_that_is_not_sure_only_warns_and_one_without_measure_is_skipped():
    assert limited(fail=0.0).status(Measured(value=1.0, text="", at_most="warn"), "exact") == "warn"
    assert limited(fail=0.0).status(Measured(text="nothing to see"), "exact") == "skipped"


def test_a_judge_has_a_limit_of_its_own():
    check = limited(fail=0.0, judges_fail=0.01)
    assert check.status(Measured(value=0.005, text=""), "judge") == "ok"
    assert check.status(Measured(value=0.005, text=""), "exact") == "fail"


def test_a_report_is_as_bad_as_its_worst_finding_and_says_so():
    good = Finding(check="a", status="ok", measured=0.0, limit="fail > 0", text="fine")
    bad = Finding(check="b", status="fail", measured=1.0, limit="fail > 0", text="not fine", examples=("try this",))
    report = AuditReport(reward="r", kind="exact", why="declared", rows=50, reads=("GOLD",), checks=[good])
    assert report.ok
    report.checks.append(bad)
    assert not report.ok
    assert "FAIL b   limit: fail > 0\n    try this" in report.render()
    assert report.to_json()["ok"] is False


def test_names_of_checks_are_unique_and_every_limit_is_said():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.limit() for check in CHECKS)


@pytest.mark.slow
def test_a_scale_of_its_own_is_halved_to_tell_accepted_from_not():
    """For a reward of -3 and +7, a score of 2 or more counts as accepted."""

    def scaled(completion, answer):
        return 10 * marked(completion, answer) - 3

    assert audit(scaled, sums(), only=["false_accepts", "false_rejects", "length_slope"]).ok


@pytest.mark.parametrize(
    ("gold", "other", "made"),
    [("7", "8", True), ("p - q", "x^2", True), (r"\text{Evelyn}", r"\text{east}", False), ("p - q", "Evelyn", False)],
)
def test_an_equation_between_words_is_no_cheat(gold, other, made):
    target = Target(prompt="Who?", gold=gold, form="boxed", others=(other, other, other))
    assert ("chain of unequal sides" in dict(made_for(target, cheats()))) == made


def games(number=60):
    return [{"prompt": "Reach it.", "target": 3 * n + 7, "nums": [3, n, 7]} for n in range(2, number + 2)]


@pytest.mark.slow
def test_the_numbers_game_is_audited_by_solutions_that_were_searched_for():
    report = audit("countdown", games(), only=["false_accepts", "false_rejects", "length_slope"])
    assert report.kind == "exact"
    assert [finding.status for finding in report.checks] == ["ok", "ok", "ok"], report.render()
    assert report.reads
    with pytest.raises(DataError, match="no row has a target that its numbers can reach; its columns are target, nums"):
        audit("countdown", [row | {"target": -1000} for row in games()])


def test_rows_that_a_run_would_refuse_are_refused():
    rows = [row | {"answer": "nobody knows"} if number == 7 else row for number, row in enumerate(sums())]
    with pytest.raises(DataError, match=r'the rows of the audit: reward "gsm8k" cannot use the gold answer of row 7: '):
        audit("gsm8k", rows, only=["constant_guess"])


@pytest.mark.slow
def test_a_reward_of_which_nothing_is_scored_has_no_slope():
    def broken(completion, answer):
        raise RuntimeError("down")

    report = audit(broken, sums(), only=["length_slope", "format_slope", "contract"])
    assert [report[check].status for check in ("length_slope", "format_slope")] == ["skipped", "skipped"]
    assert report["contract"].status == "fail"


@pytest.mark.slow
def test_a_form_of_its_own_is_given():
    def final(completion, answer):
        return float(completion == f"<final>{answer}</final>")

    report = audit(final, sums(), form="<final>GOLD</final>", kind="literal", only=["false_accepts", "false_rejects"])
    assert report.ok, report.render()
    assert report.reads == ("<final>GOLD</final>",)


@pytest.mark.parametrize("name", ["marked_tokens", "marked_tokens_batch"])
def test_a_reward_of_single_tokens_is_judged_by_its_sum(name):
    checks = ["false_rejects", "contract"]
    report = audit(planted(f"honest:{name}"), sums(), only=checks)
    assert {finding.check: finding.status for finding in report.checks} == dict.fromkeys(checks, "ok"), report.render()
    assert report.kind == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marked_tokens", "marked_tokens_batch"])
def test_a_reward_of_single_tokens_passes_every_check(name):
    checks = ["false_accepts", "false_rejects", "contract", "determinism", "safety"]
    report = audit(planted(f"honest:{name}"), sums(), only=checks)
    assert {finding.check: finding.status for finding in report.checks} == dict.fromkeys(checks, "ok"), report.render()


def test_a_reward_of_single_tokens_with_another_number_of_them_is_no_score():
    def short(completion, answer):
        return [float(completion.endswith(answer))]

    short.per_token = True
    [contract] = audit(short, sums(), only=["contract"]).checks
    assert contract.status == "fail"
    assert "1 numbers for 66 tokens instead of one finite number per token of completion_ids" in str(contract.examples)


@pytest.mark.slow
def test_chat_rows_reach_the_reward_as_messages():
    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in sums()]

    def chatted(completion, answer):
        assert completion[0]["role"] == "assistant"
        return marked(completion[0]["content"], answer)

    assert audit(chatted, rows, only=["false_accepts", "false_rejects", "contract"]).ok


@pytest.mark.slow
def test_a_column_that_only_some_rows_have_is_there_in_every_call_as_in_a_run():
    rows = [row | ({"level": 1} if place == 0 else {}) for place, row in enumerate(sums())]

    def levelled(completions, answer, level):
        return [marked(text, gold) for text, gold in zip(completions, answer, strict=True)]

    report = audit(levelled, rows, only=["false_accepts", "false_rejects", "contract"])
    assert report.ok, report.render()


def test_the_audit_of_a_config_sees_the_columns_that_its_run_sees(tmp_path):
    """`answer` of the file is a long text; a run takes the column `final` in its place."""
    rows = [{"Q text": row["prompt"], "answer": "a long solution", "final": row["answer"]} for row in sums()]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tree = {
        "model": "none",
        "algorithm": "grpo",
        "data": {"train": str(tmp_path / "rows.jsonl"), "columns": {"prompt": "Q text", "answer": "final"}},
        "rewards": ["exact_match"],
        "train": {"steps": 1},
    }
    [report] = audit_config(load_config(tree, []).config, tmp_path, only=["constant_guess"])
    assert "'3' is right in 1 of 60" in report["constant_guess"].text, report.render()


@pytest.mark.slow
def test_the_kind_is_told_by_what_a_reward_takes():
    def everything(completions, **columns):
        return [marked(text, gold) for text, gold in zip(completions, columns["answer"], strict=True)]

    def nothing(completions, **columns):
        return [float(len(text)) for text in completions]

    def kind(reward):
        report = audit(reward, sums(), only=["contract"])
        return report.kind, report.why

    assert kind(planted("honest:marked")) == ("exact", "it takes the gold answer")
    assert kind(everything) == ("exact", "its scores depend on the gold answer")
    assert kind(nothing) == ("format", "it does not take the gold answer")
    assert kind("exact_match") == ("literal", "a built-in")


BODY, WHOLE = "    return n\n", "def f(n):\n    return n\n"


@catalogue(
    "columns, program",
    [
        ({"reference": WHOLE}, WHOLE),
        ({"reference": WHOLE, "entry_point": "f"}, WHOLE),
        ({"reference": WHOLE, "entry_point": None}, WHOLE),
        ({"canonical_solution": BODY, "entry_point": "f"}, "def f(n):\n" + BODY),
        ({"solution": f"class Solution:\n    {WHOLE}", "entry_point": "Solution().f"}, f"class Solution:\n    {WHOLE}"),
        ({"entry_point": "f"}, ""),
        ({}, ""),
    ],
)
def test_the_reference_program_of_a_row_is_whole(columns, program):
    assert reference_of(Prompt(index=0, ids=(1,), text="def f(n):\n", columns=columns)) == program


def test_an_answer_that_holds_tests_is_no_gold_answer_but_makes_a_reward_of_programs():
    def graded(completion, answer):
        return 0.0

    tests = [row | {"answer": '{"inputs": ["1"], "outputs": ["2"]}'} for row in sums()]
    for reward in ("code", graded):
        with pytest.raises(DataError, match="no row has a reference program"):
            audit(reward, tests)


@pytest.mark.slow
def test_what_hangs_is_killed_and_leaves_no_process(children):
    finding = audit(planted("running:hangs"), sums(), only=["hostile_inputs"])["hostile_inputs"]
    assert finding.status == "fail"
    assert any("killed at the deadline of 2 s" in example for example in finding.examples)
    assert children() == []


def test_hostile_texts_are_short_to_say_and_long_to_read():
    assert len(HOSTILE) >= 20
    assert max(map(len, HOSTILE.values())) <= 1 << 20
    assert quote("7" * 200_000) == "'" + "7" * 45 + " ... (200000 characters) ... " + "7" * 22 + "'"


@pytest.mark.slow
def test_a_model_is_asked_for_groups_of_completions(monkeypatch):
    """A model of stories for small children: none of its answers is right, so no group teaches anything."""
    if not STORIES.is_dir():
        pytest.skip(f"needs {STORIES}")
    monkeypatch.setattr(samples, "PROMPTS", 4)
    monkeypatch.setattr(samples, "GROUP_SIZE", 3)
    finding = audit(planted("honest:marked"), sums(), model=str(STORIES), only=["group_signal"])["group_signal"]
    assert finding.status == "warn"
    assert finding.text.startswith("4 of 4 (100 %) groups have equal scores")


@pytest.mark.slow
def test_an_audit_ends_with_its_time_and_says_what_was_left_out():
    def slow(completion, answer):
        time.sleep(0.008)
        return float(completion.endswith(f"#### {answer}"))

    told: list[str] = []
    start = time.perf_counter()
    report = audit(slow, sums(), seconds=6, progress=told.append)
    assert time.perf_counter() - start < 120
    late = [finding for finding in report.checks if "out of time: the audit may take 6 s" in finding.text]
    assert late
    assert {finding.status for finding in late} == {"skipped"}
    assert told[0] == "slow: looking for the forms of an answer that it reads"
    assert told[1:] == [f"slow: {check.name}" for check in CHECKS]


def test_an_audit_without_time_for_any_check_is_no_pass():
    late = Finding(check="noise", status="skipped", measured=None, limit="-", text="out of time")
    report = AuditReport(reward="r", kind="exact", why="declared", rows=50, reads=("GOLD",), checks=[late])
    assert not report.ok
    assert (
        "Do not train on this reward yet, and there was no time for 1 checks: give the audit more time"
        in report.render()
    )


@pytest.mark.slow
def test_a_reward_that_hangs_is_no_audit_that_hangs():
    start = time.perf_counter()
    with pytest.raises(RewardError, match="did not score the first right and wrong answers within 2 s"):
        audit(planted("hanging:always"), sums(), seconds=2)
    assert time.perf_counter() - start < 120


def test_a_judge_whose_server_is_down_ends_the_audit_at_once():
    judge = {"url": "http://127.0.0.1:9/v1", "model": "nobody", "mode": "score", "retries": 0, "cache": False}
    with pytest.raises(RewardError, match=r'the judge "judge" does not answer: http://127.0.0.1:9/v1.*refused'):
        audit(Reward(judge=judge), sums())


@pytest.mark.slow
def test_a_new_process_that_dies_is_a_warning():
    finding = audit(planted("hanging:dies_elsewhere"), sums(), only=["determinism"])["determinism"]
    assert finding.status == "warn"
    assert (
        "a new process gave no scores; not in new processes: the process that watched it ended" in finding.examples[0]
    )


LOOPED = """
import asyncio, threading

LOOP, LOCK = asyncio.get_event_loop(), threading.Lock()

async def judge(text):
    await asyncio.sleep(0)
    return float(len(text) > 3)

def plain(completion, **row):
    with LOCK:
        return LOOP.run_until_complete(judge(completion))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_the_loop_that_a_file_took_stays_open_while_other_places_are_tried(tmp_path):
    (tmp_path / "looped.py").write_text(LOOPED)
    finding = audit(f"{tmp_path / 'looped.py'}:plain", sums(), only=["safety"])["safety"]
    assert finding.status == "ok", finding.text
