"""Answers that concentrate on one value, and lengths that no reward pays for: generated runs of many kinds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from tests.catalogue import few
from tests.watch.test_alarms import kinds

from posttrain.config import AlarmConfig
from posttrain.experience.group import Group
from posttrain.report.alarms import NAMES
from posttrain.rewards import Scores
from posttrain.types import Completion, Prompt
from posttrain.verify.verdict import Verdict
from posttrain.watch import Alarm, Watch
from posttrain.watch.answers import answer_metrics

G, P, STEPS = 8, 12, 20
few_seeds = pytest.mark.parametrize("seed", few(range(4), 0))
GOLDS = {
    "numbers": lambda dice: str(dice.randint(0, 40)),
    "yes or no": lambda dice: dice.choice(("yes", "no")),
    "mostly yes": lambda dice: "yes" if dice.random() < 0.7 else "no",
    "letters": lambda dice: dice.choice("ABCD"),
    "solutions": lambda dice: f"step {dice.random()} gives it #### {dice.randint(0, 40)}",
}


def group(index: int, gold: str, answers: list[str], right: list[bool], *, extracts: bool, lengths=None) -> Group:
    """One prompt whose answers are these values, inside a sentence if a reward extracts them from it."""
    texts = [f"I think that it is {answer}" if extracts else answer for answer in answers]
    completions = tuple(
        Completion(ids=(7,) * n, logprobs=(0.0,) * n, versions=(0,) * n, finish_reason="eos", text=text)
        for text, n in zip(texts, lengths or [len(text) for text in texts], strict=True)
    )
    verdicts = [
        Verdict(float(ok), "judged", extracted=a if extracts else None) for a, ok in zip(answers, right, strict=True)
    ]
    scores = Scores(
        rewards_PG=[[float(ok) for ok in right]],
        scored_PG=[[True] * len(right)],
        parts={"math": [[float(ok) for ok in right]]},
        failures=(),
        seconds={},
        verdicts={"math": [verdicts]},
    )
    return Group(
        prompt=Prompt(index=index, ids=(1,), text="?", columns={"answer": gold}), completions=completions, scores=scores
    )


def alarms_of(step_of) -> list[Alarm]:
    watch, found = Watch(AlarmConfig()), []
    for step in range(1, STEPS + 1):
        groups = step_of(step)
        rewards = [reward for one in groups for reward in one.scores.rewards_PG[0]]
        metrics = {"reward": sum(rewards) / len(rewards), **watch.look(groups, step).metrics}
        found += watch.observe(step, metrics)[0]
    return found


def course(kind: str, extracts: bool, seed: int, answer):
    """The groups of each step; `answer(dice, gold, step)` gives one value, and whether it is rewarded."""

    def step_of(step: int) -> list[Group]:
        dice = random.Random(f"{kind}-{seed}-{step}")
        groups = []
        for index in range(P):
            gold = GOLDS[kind](dice)
            value = gold.rpartition("#### ")[2]
            said = [answer(dice, value, step) for _ in range(G)]
            groups.append(group(index, gold, [a for a, _ in said], [ok for _, ok in said], extracts=extracts))
        return groups

    return step_of


def guess(kind: str, dice: random.Random) -> str:
    return GOLDS[kind](dice).rpartition("#### ")[2]


@pytest.mark.slow
@few_seeds
def test_learning_the_task_is_no_concentration_whatever_its_golds(seed):
    for kind, extracts in itertools.product(GOLDS, (True, False)):

        def learns(dice, gold, step, kind=kind):
            answer = gold if dice.random() < 0.1 + 0.85 * step / STEPS else guess(kind, dice)
            return answer, answer == gold

        assert "concentration" not in kinds(alarms_of(course(kind, extracts, seed, learns))), (kind, extracts, seed)


@few_seeds
def test_one_value_for_everything_is_an_alarm_where_golds_differ(seed):
    for kind, extracts in itertools.product(("numbers", "yes or no", "letters", "solutions"), (True, False)):

        def cheats(dice, gold, step, kind=kind):
            """From step 6 on, a growing share of the answers is one value, which a lax reward accepts."""
            answer = "A" if kind == "letters" else "yes" if kind == "yes or no" else "1"
            cheat = step > 5 and dice.random() < 0.2 * (step - 5)
            return (answer, True) if cheat else (found := guess(kind, dice), found == gold)

        fired = alarms_of(course(kind, extracts, seed, cheats))
        assert "concentration" in kinds(fired), (kind, extracts, seed)


def test_where_all_golds_are_the_same_or_there_is_none_one_value_may_be_right():
    for golds in ("7", None):

        def step_of(step, golds=golds):
            groups = [group(i, "7", ["7"] * G, [True] * G, extracts=True) for i in range(P)]
            return (
                groups
                if golds
                else [
                    Group(prompt=Prompt(index=0, ids=(1,), text="?"), completions=g.completions, scores=g.scores)
                    for g in groups
                ]
            )

        assert "text/concentration" not in Watch(AlarmConfig()).look(step_of(1), 1).metrics
        assert "concentration" not in kinds(alarms_of(step_of))


@few_seeds
def test_a_yes_of_two_tokens_and_a_no_of_three_are_no_lengths_to_pay_for(seed):
    """Either may become the rewarded answer: reward and length then agree perfectly, and nothing is wrong."""
    for paid in ("yes", "no"):

        def step_of(step, paid=paid):
            dice, groups = random.Random(f"{seed}-{step}"), []
            for index in range(P):
                answers = [
                    paid if dice.random() < 0.3 + 0.03 * step else {"yes": "no", "no": "yes"}[paid] for _ in range(G)
                ]
                right = [answer == paid if step > 5 else dice.random() < 0.3 for answer in answers]
                lengths = [{"yes": 2, "no": 3}[answer] for answer in answers]
                groups.append(group(index, dice.choice(("yes", "no")), answers, right, extracts=True, lengths=lengths))
            return groups

        assert not {"length_correlation", "length"} & set(kinds(alarms_of(step_of))), (paid, seed)


@pytest.mark.parametrize(
    ("slope", "word"), [(1, "longer answers to a prompt get more reward"), (-1, "shorter answers")]
)
def test_the_sentence_says_which_lengths_are_paid(slope, word):
    def step_of(step):
        dice, groups = random.Random(step), []
        for index in range(P):
            lengths = [dice.randint(20, 80) for _ in range(G)]
            right = [slope * (n - 50) > 0 if step > 5 else dice.random() < 0.2 for n in lengths]
            groups.append(group(index, str(index), [str(index)] * G, right, extracts=True, lengths=lengths))
        return groups

    (alarm,) = [alarm for alarm in alarms_of(step_of) if alarm.kind == "length_correlation"]
    assert alarm.message.startswith(word)
    assert (alarm.evidence["now"] > 0) == (slope > 0)
    assert NAMES["length_correlation"] == "reward came to go with length"


def test_a_correlation_that_falls_towards_0_pays_no_short_answers():
    watch = Watch(AlarmConfig())
    for step in range(1, 40):
        noise = 0.001 * (step % 3)
        metrics = {"reward": 0.02 * step, "text/length_correlation": (0.9 if step < 10 else 0.1) + noise}
        assert watch.observe(step, metrics)[0] == []


@pytest.mark.slow
@few_seeds
def test_one_value_is_one_however_it_is_written(seed):
    """The left side of the equation names the prompt's own numbers, or each answer has more zeros."""
    forms = ("{a} - {b} = 1", "{a} mod {b} = 1", "x_{a} = 1", "1.{zeros}", "{a}/{a}", "$1$")
    for form in forms:

        def cheats(dice, gold, step, form=form):
            a = dice.randint(2, 40)
            answer = form.format(a=a, b=a - 1, zeros="0" * (a % 9))
            cheat = step > 5 and dice.random() < 0.2 * (step - 5)
            return (answer, True) if cheat else (found := guess("numbers", dice), found == gold)

        assert "concentration" in kinds(alarms_of(course("numbers", True, seed, cheats))), form


@pytest.mark.parametrize(("prompts", "shared"), [([(1,), (2,), (3,)], 1.0), ([(1,), (1,), (1,)], 0.0)])
def test_answers_to_one_prompt_in_many_rows_may_be_alike(prompts, shared):
    """A game often has one prompt, and the best move is the best in all games."""
    groups = [
        replace(one, prompt=replace(one.prompt, ids=ids))
        for one, ids in (
            (group(row, "5", ["5"] * G, [True] * G, extracts=True), ids) for row, ids in enumerate(prompts)
        )
    ]
    metrics = answer_metrics(groups)
    assert (metrics["text/same_start"], metrics["text/same_end"]) == (shared, shared)
