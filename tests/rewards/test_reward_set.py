"""Scoring: the arguments of functions, the sum of components, and unscored, refused and failing completions."""

import datetime
import doctest
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.catalogue import catalogue
from tests.rewards.rollouts import IN_TIME, completion, prompt
from tests.tiny import tiny_model

import posttrain
from posttrain.errors import ConfigError, DataError, RewardError
from posttrain.rewards import Reward, RewardSet, check_gold, enforce_limit, missing
from posttrain.rewards.calls import Signature
from posttrain.rewards.components import Component
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.scores import ENVIRONMENT
from posttrain.rewards.verifiers import BUILTINS
from posttrain.types import Episode

ECHO = """
import json
from pathlib import Path

def batch(prompts, completions, completion_ids, **columns):
    save(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
    return [1.0] * len(prompts)

def some(completions, level, unknown=5):
    save(completions=completions, level=level, unknown=unknown)
    return [1.0] * len(completions)

def sample(prompt, completion, completion_ids, **row):
    save(prompt=prompt, completion=completion, completion_ids=completion_ids, **row)
    return True

def save(**seen):
    Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture
def seen(reward_file, score, tmp_path):
    """Call one of the functions above and return the arguments that it received."""

    def call(name, texts, **options):
        settings = options.pop("settings", {})
        score(texts, Reward(function=reward_file(ECHO, name=name), settings=settings), **options)
        return json.loads((tmp_path / "seen.json").read_text())

    return call


def test_a_batch_function_gets_lists_with_the_prompt_repeated(seen):
    assert seen("batch", ["ab", "c"], answer="4", level=[1, 2]) == {
        "prompts": ["a question", "a question"],
        "completions": ["ab", "c"],
        "completion_ids": [[97, 98], [99]],
        "answer": ["4", "4"],
        "level": [[1, 2], [1, 2]],
    }


def test_chat_prompts_and_their_completions_are_messages_as_in_trl(seen):
    arguments = seen("batch", ["ab"], chat=True)
    assert arguments["prompts"] == [[{"role": "user", "content": "a question"}]]
    assert arguments["completions"] == [[{"role": "assistant", "content": "ab"}]]
    arguments = seen("sample", ["ab"], chat=True)
    assert arguments["completion"] == [{"role": "assistant", "content": "ab"}]


def test_text_that_was_wrapped_as_a_user_turn_stays_text(built):
    wrapped = replace(prompt(0, "<user>a question<assistant>", chat=True), plain="a question")
    seen = []
    built(lambda prompt, completion: seen.append((prompt, completion)) or 1.0).score([wrapped], [[completion("ab")]])
    assert seen == [("a question", "ab")]


OPENING = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"})


@pytest.mark.parametrize(
    ("row", "opening", "wanted"),
    [
        (prompt(0, chat=True), OPENING, list(OPENING)),
        (prompt(0, chat=True), OPENING[1:], list(OPENING[1:])),
        (prompt(0, chat=True), None, [{"role": "user", "content": "a question"}]),
        (replace(prompt(0, chat=True), plain="a question"), OPENING[1:], "Capital of France?"),
        (replace(prompt(0, chat=True), plain="a question"), OPENING, "Be brief.\n\nCapital of France?"),
        (replace(prompt(0, chat=True), plain="a question"), None, "a question"),
    ],
)
def test_a_prompt_that_the_environment_replaced_is_the_one_that_rewards_see(built, row, opening, wanted):
    episode = Episode(messages=(), turns=1, ended="done", opening=opening)
    seen = []
    rewards = built(lambda prompt: seen.append(prompt) or 1.0)
    rewards.score([row], [[replace(completion("Paris"), episode=episode)]])
    assert seen == [wanted]


def test_a_failure_of_an_environment_has_its_traceback(built):
    failed = Episode(messages=(), turns=1, ended="", failure="exception", detail="KeyError: 4", traceback="line 9")
    rewards = built(lambda prompt: 1.0)
    (failure,) = rewards.score([prompt(0)], [[replace(completion("x"), episode=failed)]]).failures
    assert (failure.label, failure.message, failure.traceback) == (ENVIRONMENT, "KeyError: 4", "line 9")


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        (["environment"], True),
        (["agent"], True),
        (["numeric", "environment"], True),
        ([lambda completion, environment_reward: 1.0], True),
        ([lambda completions, environment_token_rewards: [1.0]], True),
        (["numeric"], False),
        ([lambda completion: 1.0], False),
    ],
)
def test_a_run_knows_whether_a_reward_reads_that_of_the_environment(built, given, reads):
    rewards = built(*(Reward(name=one) if isinstance(one, str) else one for one in given))
    assert rewards.reads_environment is reads


def test_a_per_sample_function_gets_one_row(seen):
    assert seen("sample", ["ab"], answer="4") == {
        "prompt": "a question",
        "completion": "ab",
        "completion_ids": [97, 98],
        "answer": "4",
    }


def test_a_function_without_kwargs_gets_only_what_it_names_and_settings_win(seen):
    assert seen("some", ["ab"], level=1, answer="4") == {"completions": ["ab"], "level": [1], "unknown": 5}
    assert seen("some", ["ab"], level=1, settings={"level": 9})["level"] == 9


def test_columns_of_any_usual_type_arrive(seen):
    day = datetime.date(2024, 2, 29)
    arguments = seen(
        "sample", ["ab"], day=day, array=np.array([1, 2]), nested={"a": (1, None)}, nan=float("nan"), cut="\ud83d"
    )
    assert (arguments["day"], arguments["array"], arguments["nested"]) == ("2024-02-29", [1, 2], {"a": [1, None]})
    assert math.isnan(arguments["nan"])
    assert arguments["cut"] == "\ud83d"


def test_a_column_that_only_some_rows_have_is_none_for_the_others(reward_file, built):
    function = reward_file("def reward(completions, level): return [x is None for x in level]")
    scores = built(Reward(function=function)).score(
        [prompt(0, level=1), prompt(1)], [[completion("a")], [completion("b")]]
    )
    assert scores.rewards_PG == [[0.0], [1.0]]


def test_a_column_that_the_data_lacks_is_a_config_error(reward_file, built, score):
    function = reward_file("def reward(completions, levels): ...")
    with pytest.raises(
        ConfigError,
        match=r"asks for the column 'levels', .*; did you mean \"level\"\?; allowed: the columns answer, level",
    ):
        score(["x"], Reward(function=function), level=1, answer="4")
    with pytest.raises(ConfigError, match=r"asks for the column 'answer'.*\n.*data.answer"):
        built("math").check([prompt(0, solution="4")])


def test_a_column_that_only_the_held_out_data_lacks_is_to_be_added_there(reward_file, tmp_path):
    files = {"train": {"prompt": "ab", "who": "x"}, "eval": {"prompt": "cd"}}
    for name, row in files.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError) as caught:
        posttrain.train(
            {
                "model": str(tiny_model(tmp_path / "model")),
                "algorithm": "grpo",
                "data": {name: str(tmp_path / f"{name}.jsonl") for name in files},
                "rewards": [reward_file("def who_len(prompts, completions, who, **kw): ...", name="who_len")],
                "sampling": {"max_completion_length": 4},
                "train": {"steps": 1, "prompts_per_step": 1},
                "output": str(tmp_path / "run"),
            }
        )
    assert str(caught.value).startswith(
        "held-out data: reward \"who_len\" asks for the column 'who', but the data does not have it; allowed: "
        "none: the "
        "rows hold only prompts.\n  Add the column to the held-out data (data.eval), rename the parameter, give it a "
        "default, or give its value in the reward's settings.who."
    )


def test_a_judge_s_column_that_the_held_out_data_lacks_is_to_be_added_there(built):
    judge = {"model": "any", "url": "http://localhost:9/v1", "mode": "reference"}
    with pytest.raises(
        ConfigError, match=r"held-out data: judge .* column 'answer'.*\n  Add the column to the held-out"
    ):
        built(Reward(judge=judge)).check([prompt(0)], missing.HELD_OUT)


def test_a_judge_s_column_that_other_rows_of_the_data_have_is_there(built):
    """It is handled as for a function: the judge does not apply to rows without the column."""
    judge = {"model": "any", "url": "http://localhost:9/v1", "mode": "reference"}
    held_out = replace(prompt(0), columns_of_data=("answer",))
    built(Reward(judge=judge)).check([held_out], missing.HELD_OUT)


def test_examples_in_docstrings_run():
    assert doctest.testmod(missing) == (0, 1)


def test_the_reward_is_the_weighted_sum_and_parts_are_unweighted(reward_file, score):
    long = reward_file("def length(completions): return [len(text) for text in completions]", name="length")
    scores = score(["4", "the 5"], "numeric", Reward(function=long, weight=0.1), answer="4")
    assert scores.rewards_PG == [[pytest.approx(1.1), pytest.approx(0.5)]]
    assert scores.parts == {"numeric": [[1.0, 0.0]], "length": [[1.0, 5.0]]}
    assert scores.failures == ()
    assert scores.seconds.keys() == {"numeric", "length"}


def test_groups_keep_their_shape(built):
    scores = built("numeric").score(
        [prompt(0, answer="1"), prompt(1, answer="2"), prompt(2, answer="3")],
        [[completion("1"), completion("2")], [], [completion("3")]],
    )
    assert scores.rewards_PG == [[1.0, 0.0], [], [1.0]]
    assert scores.scored_PG == [[True, True], [], [True]]


def test_nothing_to_score_is_nothing_scored(built):
    assert built("numeric").score([], []).rewards_PG == []
    assert built("numeric").score([], []).unscored_fraction == 0.0


def test_none_is_not_applicable_and_drops_out_of_the_sum(score):
    def only_long(completion):
        return None if len(completion) < 3 else 1.0

    scores = score(
        ["4", "the 4"], "numeric", Reward(function=lambda completion: only_long(completion), label="long"), answer="4"
    )
    assert scores.rewards_PG == [[1.0, 2.0]]
    assert scores.parts["long"] == [[None, 1.0]]


def test_a_completion_for_which_all_components_are_none_is_unscored(score):
    scores = score(["a", "b"], lambda completions: [None, 1.0])
    assert math.isnan(scores.rewards_PG[0][0])
    assert scores.scored_PG == [[False, True]]
    assert scores.failures == ()
    assert scores.unscored_fraction == 0.5


def test_one_failed_component_leaves_the_whole_completion_unscored(score):
    scores = score(["4", "5"], "numeric", lambda completion: 1 / (len(completion) - 1), answer="4")
    assert scores.scored_PG == [[False, False]]
    assert scores.parts["numeric"] == [[1.0, 0.0]]
    assert {failure.kind for failure in scores.failures} == {"exception"}


def test_a_component_of_weight_zero_is_watched_but_neither_gives_nor_takes_a_reward(score):
    failing = Reward(function=lambda completion: 1 / 0, label="failing", weight=0)
    scores = score(["4"], "numeric", failing, answer="4")
    assert scores.rewards_PG == [[1.0]]
    assert [failure.label for failure in scores.failures] == ["failing"]
    watched = Reward(function=lambda completion: 1.0, label="watched", weight=0)
    assert score(["4"], Reward(function=lambda completion: None, label="none"), watched).scored_PG == [[False]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda completion: math.nan, r"returned nan for prompt 7, completion 1 of 2 \(\"... .*the answer is 1/0\"\)"),
        (lambda completions: [1.0, math.inf], r"returned inf for prompt 7, completion 2 of 2 \(\"short\"\)"),
        (lambda completion: "1.0", "returned '1.0' of type str for prompt 7, completion 1"),
        (lambda completion: [1.0], "returned a list of 1 for prompt 7, completion 1"),
        (lambda completions: [1.0], "returned 1 values for 2 completions"),
        (lambda completions: 1.0, "returned one number for 2 completions"),
        (lambda completions: ["1", "2"], "returned '1' of type str for 2 completions"),
    ],
)
def test_a_broken_contract_is_an_error_and_not_a_reward(score, function, message):
    long = "so that, all things considered and all numbers added, the answer is 1/0"
    with pytest.raises(RewardError, match=f'reward "reward" {message}'):
        score([long, "short"], Reward(function=function, label="reward"))


ASYNC_BEHIND_A_PLAIN_DECORATOR = """
    import asyncio, functools

    def logged(function):
        @functools.wraps(function)
        def call(*arguments, **columns):
            return function(*arguments, **columns)
        return call

    @logged
    async def one(completion):
        return 1.0

    @logged
    async def batch(completions):
        return [1.0 for _ in completions]

    def each(completions):
        return [one(completion) for completion in completions]

    @logged
    async def tokens(completion, completion_ids):
        return [1.0 for _ in completion_ids]

    tokens.per_token = True

    class Later:
        def __await__(self):
            yield

    def later(completion):
        return Later()
"""


@pytest.mark.parametrize("name", ["one", "batch", "each", "tokens", "later"])
def test_a_coroutine_that_nobody_awaits_is_named(reward_file, score, name):
    function = reward_file(ASYNC_BEHIND_A_PLAIN_DECORATOR, name)
    with pytest.raises(RewardError, match=r"returned a coroutine for .*\n.*async def, or await it") as error:
        score(["x"], Reward(function=function))
    assert "parsed" not in str(error.value)


def test_nan_from_a_worker_process_is_an_error_too(reward_file, score):
    with pytest.raises(RewardError, match="returned nan for prompt 7, completion 1 of 1"):
        score(["x"], Reward(function=reward_file("def reward(completion): return float('nan')")))


def test_a_batch_call_that_times_out_leaves_all_its_rows_unscored(reward_file, score):
    function = reward_file("import time\ndef reward(completions):\n    print('thinking')\n    time.sleep(60)")
    scores = score(["a", "b"], Reward(function=function, timeout=IN_TIME))
    assert scores.scored_PG == [[False, False]]
    assert [(f.completion, f.kind) for f in scores.failures] == [(0, "timeout"), (1, "timeout")]
    assert "thinking" in scores.failures[0].traceback


def test_async_functions_of_both_forms(reward_file, score):
    code = """
    import asyncio

    async def batch(completions):
        return list(await asyncio.gather(*(one(text) for text in completions)))

    async def one(completion):
        await asyncio.sleep(60 if completion == "hang" else 0.01)
        if completion == "block":
            import time
            time.sleep(60)
        return len(completion)
    """
    assert score(["a", "bb"], Reward(function=reward_file(code, name="batch"))).rewards_PG == [[1.0, 2.0]]
    one = Reward(function=reward_file(code, name="one"), timeout=IN_TIME)
    assert score(["a", "hang", "bb"], one).parts["one"] == [[1.0, None, 2.0]]
    assert score(["a", "block", "bb"], one).parts["one"] == [[1.0, None, 2.0]]


@pytest.mark.parametrize(
    "at_import",
    [
        "LOOP = asyncio.get_event_loop()",
        "LOOP = asyncio.get_event_loop(); LOOP.run_until_complete(asyncio.sleep(0))",
        "LOOP = asyncio.get_event_loop(); LOOP.close()",
        "LOOP = None; asyncio.run(asyncio.sleep(0))",
        "LOOP = None; B = asyncio.new_event_loop(); asyncio.set_event_loop(B); run_in_a_thread(B)",
    ],
)
def test_an_async_function_runs_on_the_loop_that_its_file_took_and_a_plain_one_finds_it(reward_file, built, at_import):
    """A file may create a client when it is imported. The loop stays the same from batch to batch."""
    code = f"""
    import asyncio, threading

    def run_in_a_thread(loop):
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

    {at_import}
    OPEN = LOOP is not None and not LOOP.is_closed()
    STARTED = []

    async def waits(completion):
        STARTED.append(asyncio.get_running_loop())
        if OPEN:
            await LOOP.create_task(asyncio.sleep(0))
        return all(loop is STARTED[0] for loop in STARTED)

    def plain(completion):
        return not asyncio.get_event_loop().is_closed()
    """
    waits, plain = (Reward(function=reward_file(code, name=name)) for name in ("waits", "plain"))
    rewards = built(waits, plain)
    for _ in range(2):
        assert rewards.score([prompt(7)], [[completion("a"), completion("bb")]]).rewards_PG == [[2.0, 2.0]]


def test_a_hostile_answer_is_not_worked_out_and_the_others_are_scored(score):
    tower = r"\boxed{x = 9^{9^{9^{9}}}}"
    scores = score(
        [tower, r"\boxed{\frac{\sqrt{2}}{2}}", "0"], Reward(name="math", timeout=60), answer=r"\frac{1}{\sqrt{2}}"
    )
    assert scores.parts["math"] == [[0.0, 1.0, 0.0]]
    assert scores.verdicts["math"][0][0].reason == "too_large"
    assert not scores.failures


def test_a_catastrophic_pattern_is_killed(score):
    scores = score(["a" * 60, "ab"], Reward(name="regex", settings={"pattern": "(a+)+b"}, timeout=IN_TIME))
    assert scores.parts["regex"] == [[None, 1.0]]


def test_check_names_the_rows_whose_gold_no_verifier_can_use(built):
    golds = ["4", "", r"\frac{1}{", r"\frac{1}{2}", ""]
    rows = [prompt(10 + row, answer=gold) for row, gold in enumerate(golds)]
    with pytest.raises(
        DataError, match=r"gold answer of row 11: the gold answer is ''; .*3 of 5 rows .* 11, 12 and 14\)"
    ):
        built("math").check(rows)
    with pytest.raises(DataError, match=r"\"numeric\" cannot use the gold answer of row 2: .*'x' is not one number"):
        check_gold([{"answer": "1"}, {"answer": 2}, {"answer": "x"}], reward="numeric")
    places = ["a.jsonl:1", "a.jsonl:3", "a.jsonl:4", "b.jsonl:1", "b.jsonl:9"]
    rows = [replace(row, origin=place) for row, place in zip(rows, places, strict=True)]
    with pytest.raises(
        DataError, match=r"training data: .* of a.jsonl:3: .*3 of 5 rows .*\(a.jsonl:3, :4 and b.jsonl:9\)"
    ):
        built("math").check(rows, "training data")
    check_gold([{"solution": r"so \boxed{\frac{1}{2}}"}, {"solution": "#### 7"}], column="solution")


def test_the_limit_on_unscored_completions_shows_the_first_traceback(score):
    scores = score(["a", "b", "c", "d"], Reward(function=lambda completion: {"a": 1.0}[completion], label="lookup"))
    enforce_limit(scores, 0.75)
    with pytest.raises(RewardError) as raised:
        enforce_limit(scores, 0.5)
    message = str(raised.value)
    assert 'of 4 completions (75%) have no reward, and the limit is 50%: 3 × "lookup" exception' in message
    assert "First failure: reward \"lookup\", prompt 7, completion 2: exception: KeyError: 'b'" in message
    assert '{"a": 1.0}[completion]' in message
    assert "guards.max_unscored" in message


def test_the_limit_explains_completions_to_which_nothing_applied(score):
    with pytest.raises(RewardError, match="every component returned None"):
        enforce_limit(score(["a"], lambda completion: None), 0.0)


def test_a_worker_finds_modules_in_the_folder_that_the_run_was_started_in(score, tmp_path, monkeypatch):
    """Also if it is forked, as in most tests, from a process that works in another folder (tests/forked.py)."""
    (tmp_path / "lengths_of_here.py").write_text("def length(completion):\n    return len(completion)\n")
    monkeypatch.chdir(tmp_path)
    assert score(["4", "the 5"], Reward(function="lengths_of_here.length")).rewards_PG == [[1, 5]]


def named(name: str, weight: float = 1.0) -> Component:
    builtin = BUILTINS[name]
    signature = Signature.of(builtin.function, name)
    return Component(label=name, weight=weight, timeout=1.0, settings={}, signature=signature, builtin=builtin)


@catalogue(
    "rewards, parts, right",
    [
        # A bonus makes no answer right, a penalty makes none wrong, and the scale of the sum does not matter.
        ([("exact_match",), ("format",)], {"exact_match": 0.0, "format": 1.0}, False),
        ([("format",), ("exact_match",)], {"exact_match": 1.0, "format": 0.0}, True),
        ([("numeric", 0.2), ("l1_exact",)], {"numeric": 1.0, "l1_exact": -0.7}, True),
        ([("numeric", 9), ("format",)], {"numeric": 0.5, "format": 1.0}, False),
        # Of several verifiers those in the sum decide, or else those that are only logged.
        ([("numeric",), ("exact_match", 0)], {"numeric": 1.0, "exact_match": 0.0}, True),
        ([("cosine",), ("math", 0)], {"cosine": 1.2, "math": 0.0}, False),
        ([("numeric",), ("math",)], {"numeric": 1.0, "math": 0.0}, False),
        # One that does not apply says nothing.
        ([("numeric",), ("math",)], {"numeric": None, "math": 1.0}, True),
        ([("numeric",), ("language",)], {"numeric": None, "language": 1.0}, True),
        ([("numeric",), ("language",)], {"numeric": None, "language": None}, False),
        # Without a verifier, what is not about form or length decides.
        ([("environment",), ("repetition",)], {"environment": 1.0, "repetition": -0.2}, True),
        ([("soft_overlong",), ("regex",)], {"soft_overlong": 0.0, "regex": 1.0}, True),
        ([("environment",), ("format",)], {"environment": 0.0, "format": 1.0}, False),
        ([("cosine",), ("regex", 0)], {"cosine": 0.4, "regex": 1.0}, True),
        ([("environment",), ("regex",)], {"environment": 1.0, "regex": 0.0}, False),
        # What lowers the sum decides nothing.
        ([("format",), ("regex", -1)], {"format": 1.0, "regex": 0.0}, True),
        ([("format",), ("regex", -1)], {"format": 0.0, "regex": 1.0}, False),
        # Form alone decides if there is nothing else.
        ([("format",), ("finished",)], {"format": 1.0, "finished": 0.0}, False),
        ([("format",), ("finished",)], {"format": 1.0, "finished": 1.0}, True),
        ([("format",), ("repetition", -1)], {"format": 1.0, "repetition": 0.3}, True),
        ([("format", 3)], {"format": 0.9}, False),
    ],
)
def test_which_answers_are_right(rewards, parts, right):
    assert RewardSet([named(*one) for one in rewards], pool=WorkerPool(1)).is_right(parts) is right


def test_behind_shut_gates_no_bonus_makes_an_answer_right():
    rewards = RewardSet([named("math"), named("numeric"), named("format", 0.2)], pool=WorkerPool(1))
    given = {"math": 1.0, "numeric": 0.0, "format": 1.0}
    assert rewards.is_right(given, {"math": True, "numeric": False})
    assert not rewards.is_right(given, {"math": False, "numeric": True})
    assert not rewards.is_right(given, {"math": False, "numeric": False})
    assert not rewards.is_right(given, {"math": False, "numeric": False, "format": True})


@catalogue(
    "gates, given, right",
    [
        # Rows are routed: one of the two judges each answer, the built-in verifier or the environment.
        ({"math": False, "environment": True}, {"math": 0.0, "environment": 1.0}, True),
        ({"math": True, "environment": False}, {"math": 0.0, "environment": 1.0}, False),
        ({"math": False, "environment": False}, {"math": 1.0, "environment": 1.0}, False),
        ({"math": False}, {"math": 1.0, "environment": 1.0}, False),  # no route leads to the environment
        ({"math": None}, {"math": 1.0, "environment": 1.0}, True),  # it drops out
        ({"math": None}, {"math": 1.0, "environment": 0.0}, False),
    ],
)
def test_who_decides_behind_gates(gates, given, right):
    assert RewardSet([named("math"), named("environment")], pool=WorkerPool(1)).is_right(given, gates) is right


@catalogue(
    "rewards, decide",
    [
        ([("format",), ("math",)], ("math",)),
        ([("math",), ("numeric",)], ("math", "numeric")),
        ([("environment",), ("repetition",), ("format",)], ()),
        ([("format",)], ()),
        ([("environment",), ("regex",)], None),
        ([("format",), ("language",)], None),
    ],
)
def test_who_decides_which_answers_are_right(rewards, decide):
    assert RewardSet([named(*one) for one in rewards], pool=WorkerPool(1)).verifiers == decide
