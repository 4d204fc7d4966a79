"""Completions that are scored while others are sampled: the same scores, truly in parallel, and no less safe."""

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewards.rollouts import IN_TIME, completion, prompt

from posttrain.errors import DataError, RewardError
from posttrain.experience.generate import draw
from posttrain.rewards import Reward, build_rewards

FUNCTIONS = """
import json, os, time
from pathlib import Path

HERE = Path(__file__).parent

def note(name, seen):
    with (HERE / name).open("a") as file:
        file.write(json.dumps(seen) + "\\n")

def ranked(completions):
    note("ranked", completions)
    order = sorted(range(len(completions)), key=lambda i: (len(completions[i]), i))
    return [order.index(i) / len(order) for i in range(len(order))]

def best(completions, groups):
    note("best", completions)
    return [float(len(text) == max(map(len, completions))) for text in completions]

best.by_group = True

def picky(completion, level=None):
    if len(completion) % 3 == 2:
        raise ValueError(f"{completion} again")
    return None if level is None else len(completion) / level

async def slow(completion):
    return float(completion.count("a"))

def meets(completion):
    if completion == "first":
        (HERE / "began").touch()
        while not (HERE / "later").exists():
            time.sleep(0.01)
    return 1.0

def hostile(completion):
    if completion == "hang":
        (HERE / "began").touch()
        time.sleep(600)
    if completion == "crash":
        os._exit(5)
    if completion == "nap":
        time.sleep(0.8)
    return float(len(completion))
"""


@pytest.fixture
def function(reward_file):
    return lambda name: reward_file(FUNCTIONS, name=name)


def wait_for(happened, seconds=60.0):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def without_clock(scores):
    verdicts = {
        label: [[v is not None and {**v.to_json(), "seconds": 0} for v in group] for group in part]
        for label, part in scores.verdicts.items()
    }
    return repr(replace(scores, seconds={}, verdicts=verdicts))


# --- the same scores -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mixed.py"
    path.write_text(FUNCTIONS)
    entries = [
        "numeric",
        Reward(function=lambda completion: len(completion) / 7, label="here"),
        Reward(function=lambda completions: [i / 3 for i, _ in enumerate(completions)], label="all", weight=0.3),
        Reward(name="cosine", settings={"max_length": 9}, gate="numeric", weight=0.2),
        Reward(function=f"{path}:picky", gate="here", weight=0.1),
        *(Reward(function=f"{path}:{name}", weight=0.1) for name in ("ranked", "best", "slow")),
    ]
    with build_rewards(entries, workers=2) as rewards:
        yield rewards


TEXTS = st.lists(st.text("a4 ", max_size=5), min_size=0, max_size=3)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_order_of_arrival_changes_nothing(mixed, data):
    groups = [[completion(text) for text in group] for group in data.draw(st.lists(TEXTS, max_size=5))]
    levels = [data.draw(st.sampled_from([{}, {"level": 2}])) for _ in groups]
    prompts = [prompt(10 * n, answer="4", **level) for n, level in enumerate(levels)]
    expected = mixed.score(prompts, groups)
    at_once = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4]))) + [p for p, group in enumerate(groups) if not group]
    rows = [(p, g) for p, group in enumerate(groups) for g in range(len(group)) if p not in at_once]
    whole = [(p, -1) for p in range(len(groups)) if p in at_once]
    with mixed.open(prompts) as scoring:
        for p, g in data.draw(st.permutations(rows + whole)):
            if g < 0:
                scoring.add(p, groups[p])
            else:
                scoring.add_one(p, g, groups[p][g], group_size=len(groups[p]))
        scores = scoring.result()
    assert without_clock(scores) == without_clock(expected)


def test_failures_stand_in_the_order_of_the_rows_and_the_first_has_the_traceback(function, built):
    prompts = [prompt(n) for n in range(3)]
    with built(Reward(function=function("picky"))).open(prompts) as scoring:
        for place in (2, 0, 1):
            scoring.add(place, [completion("aa"), completion("aaaaa")])
        failures = scoring.result().failures
    assert [(f.prompt, f.completion) for f in failures] == [(p, c) for p in range(3) for c in range(2)]
    assert [bool(f.traceback) for f in failures] == [True] + [False] * 5


def test_a_list_function_sees_one_call_with_all_in_order_and_one_by_group_a_call_for_each(function, built, tmp_path):
    rewards = built(Reward(function=function("ranked")), Reward(function=function("best")), workers=1)
    prompts = [prompt(n) for n in range(3)]
    with rewards.open(prompts) as scoring:
        for place in (1, 2, 0):
            scoring.add(place, [completion("a" * place), completion("b")])
        parts = scoring.result().parts
    assert (tmp_path / "ranked").read_text() == '["", "b", "a", "b", "aa", "b"]\n'
    assert (tmp_path / "best").read_text().splitlines() == ['["a", "b"]', '["aa", "b"]', '["", "b"]']
    assert parts["best"] == [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]


def test_every_prompt_has_its_completions_once(built):
    with built("numeric").open([prompt(0, answer="4"), prompt(1, answer="4")]) as scoring:
        scoring.add(1, [completion("4")])
        with pytest.raises(ValueError, match="the completions of 1 of 2 prompts are missing"):
            scoring.result()
        for wrong in (1, 2, -1):
            with pytest.raises(ValueError, match=f"a completion of prompt {wrong} of 2 arrived twice, or is unknown"):
                scoring.add(wrong, [completion("4")])
            with pytest.raises(ValueError, match="twice, or is unknown"):
                scoring.add_one(wrong, 0, completion("4"), group_size=1)


# --- in parallel -----------------------------------------------------------------------------------------------------


def test_a_worker_scores_a_completion_before_the_next_of_its_group_is_sampled(function, built, tmp_path):
    """The reward of the first completion waits for a file that exists only after the second has been sampled."""

    def sampler():
        yield 0, 1, completion("first")
        wait_for((tmp_path / "began").exists)
        (tmp_path / "later").touch()
        yield 0, 0, completion("second")

    rewards = built(Reward(function=function("meets"), timeout=60))
    drawn = draw(sampler(), [prompt(0)], rewards, group_size=2)
    assert drawn.scores is not None
    assert drawn.scores.rewards_PG == [[1.0, 1.0]]
    assert [one.text for one in drawn.completions[0]] == ["second", "first"]
    assert drawn.sample_seconds > 0
    assert drawn.wait_seconds >= 0


def test_a_function_of_this_process_does_so_in_a_thread(built):
    began, later = threading.Event(), threading.Event()

    def reward(completion):
        began.set()
        return float(completion == "second" or later.wait(60))

    with built(Reward(function=reward, timeout=60)).open([prompt(0)]) as scoring:
        scoring.add_one(0, 0, completion("first"), group_size=2)
        assert began.wait(60)
        later.set()
        scoring.add_one(0, 1, completion("second"), group_size=2)
        assert scoring.result().rewards_PG == [[1.0, 1.0]]


def test_waiting_for_a_free_worker_is_not_being_late(function, built):
    naps = [[completion("nap")] * 2 for _ in range(3)]
    prompts = [prompt(n) for n in range(3)]
    scores = built(Reward(function=function("hostile"), timeout=IN_TIME), workers=1).score(prompts, naps)
    assert not scores.failures, "six calls of 0.8 s, one after the other"


def test_without_rewards_groups_are_collected_in_the_order_of_the_prompts():
    sampled = iter([(1, 0, completion("b")), (0, 0, completion("a"))])
    drawn = draw(sampled, [prompt(0), prompt(1)], None, group_size=1)
    assert ([group[0].text for group in drawn.completions], drawn.scores) == (["a", "b"], None)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_or_kills_its_worker_suffers_alone(function, built):
    prompts = [prompt(n) for n in range(4)]
    groups = [[completion(text), completion("fine")] for text in ("abc", "hang", "crash", "ab")]
    with built(Reward(function=function("hostile"), timeout=IN_TIME), workers=2).open(prompts) as scoring:
        for place in (2, 1, 3, 0):
            scoring.add(place, groups[place])
        scores = scoring.result()
    assert scores.parts["hostile"] == [[3.0, 4.0], [None, 4.0], [None, 4.0], [2.0, 4.0]]
    assert [(f.prompt, f.kind) for f in scores.failures] == [(1, "timeout"), (2, "crash")]


def test_an_interrupt_kills_the_busy_workers_and_the_rewards_can_be_used_again(function, built, tmp_path, children):
    rewards = built(Reward(function=function("hostile"), timeout=600), workers=2)

    def sampler():
        yield 0, 0, completion("hang")
        wait_for((tmp_path / "began").exists)
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        draw(sampler(), [prompt(0), prompt(1)], rewards, group_size=1)
    assert time.monotonic() - before < 300, "it does not wait for the call"
    assert len(children()) <= 1
    assert rewards.score([prompt(0)], [[completion("abc")]]).rewards_PG == [[3.0]]


def test_an_interrupt_ends_a_function_of_this_process_after_the_call_that_it_is_making(built):
    """The calls that its thread has accepted but not begun never begin."""
    made, all_there, taken_over, released = [], threading.Event(), threading.Event(), threading.Event()

    def held(completion):
        made.append(completion)
        if completion == "first":
            assert all_there.wait(60)
            return 1.0
        taken_over.set()
        assert released.wait(60)
        return 1.0

    def sampler():
        for number, text in enumerate(["first", *"abcdef"]):
            yield 0, number, completion(text)
        all_there.set()
        assert taken_over.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(sampler(), [prompt(0)], built(held), group_size=8)
    released.set()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "rewards"])
    assert len(made) == 2


def test_closing_gives_up_what_is_under_way(function, tmp_path, children):
    rewards = build_rewards([Reward(function=function("hostile"), timeout=600)])
    scoring = rewards.open([prompt(0)])
    scoring.add(0, [completion("hang")])
    wait_for((tmp_path / "began").exists)
    rewards.close()
    assert children() == []


def test_what_stops_a_reward_stops_the_sampling(built):
    """Too many threads hang: the sampling does not wait for the next group."""
    gone = threading.Event()
    rewards = built(Reward(function=lambda completion: float(gone.wait(60)), label="stuck", timeout=0.05))
    sampled = []

    def sampler():
        for place in range(1000):
            sampled.append(place)
            yield place, 0, completion("x")
            time.sleep(0.05)

    with pytest.raises(RewardError, match='reward "stuck" hangs in 4 threads'):
        draw(sampler(), [prompt(n) for n in range(1000)], rewards, group_size=1)
    assert len(sampled) < 1000
    gone.set()


def test_what_cannot_be_sent_to_a_worker_is_an_error_and_the_workers_stay_usable(function, built):
    rewards = built(Reward(function=function("picky")), workers=1)
    with pytest.raises(DataError, match="has a value of type bytes"):
        rewards.score([prompt(0, level=b"2"), prompt(1, level=b"2")], [[completion("a")], [completion("a")]])
    assert rewards.score([prompt(0, level=2)], [[completion("a")]]).rewards_PG == [[0.5]]


@pytest.mark.parametrize("size", [1e7, 1e30, -1e30, 1e308, -1e308])
@pytest.mark.parametrize("others", [0.0, 1.0, -0.5])
def test_one_reward_beside_which_the_others_are_nothing_stops_the_step(built, size, others):
    """Otherwise it would be trained on without a warning: it alone makes up the deviation of the step."""
    rewards = built(lambda completion: size if completion == "odd" else others)
    texts = ["even"] * 49 + ["odd"]
    with pytest.raises(RewardError, match=r"returned -?1e\+\d+ for prompt 3, completion 50 of 50 .*half"):
        rewards.score([prompt(3)], [[completion(text) for text in texts]])


def test_rewards_of_any_size_are_scored_where_they_are_of_one_size(built):
    for scale in (1e-9, 1.0, 1e5, 1e9):
        rewards = built(lambda completion, scale=scale: scale * len(completion))
        scores = rewards.score([prompt(0)], [[completion("a" * n) for n in (1, 5, 90)]])
        assert scores.rewards_PG == [[scale, 5 * scale, 90 * scale]]
    with pytest.raises(RewardError, match="values up to 1e\\+06 times the usual one, and up to 1e\\+12"):
        built(lambda completion: 1e308).score([prompt(0)], [[completion("a"), completion("b")]])


def test_a_run_reads_answers_from_one_place_unless_it_is_told_otherwise():
    """`math` reads the box, word problems the last line; checks and direct calls of a function search the whole
    text."""
    said = ["The answer is 7.", r"\\boxed{7}".replace("\\\\", "\\"), "#### 7", "So 7\nI hope."]
    found = {}
    for name in ("math", "math500", "math_lenient", "aime", "gsm8k", "svamp", "numeric"):
        for training in (True, False):
            with build_rewards([Reward(name=name)], training=training) as rewards:
                scores = rewards.score([prompt(0, answer="7")], [[completion(text) for text in said]])
                found[name, training] = scores.rewards_PG[0]
                assert bool(rewards.facts) == training
    assert found == {
        (name, training): ([0, 1, 0, 0] if name in ("math", "math500", "math_lenient", "aime") else [1, 1, 1, 0])
        if training
        else [1, 1, 1, found[name, False][3]]
        for name, training in found
    }
    with build_rewards(["math"], training=True) as rewards:
        for text, warned in (("What is 3 + 4?", True), ("What is 3 + 4? Put it into \\boxed{}.", False)):
            rewards.check([replace(prompt(0, answer="7"), text=text)])
            assert [note.startswith('reward "math" reads \\boxed{...} alone') for note in rewards.notes] == [
                True
            ] * warned
    with build_rewards([Reward(name="math", settings={"answer_from": "anywhere"})], training=True) as rewards:
        assert rewards.score([prompt(0, answer="7")], [[completion("The answer is 7.")]]).rewards_PG == [[1.0]]
        assert rewards.facts == ['reward "math" reads the answer from: anywhere (settings.answer_from)']
