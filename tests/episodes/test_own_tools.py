"""Environments with their own tools, their own prompt, and metrics in addition to their reward."""

from __future__ import annotations

from itertools import chain

import pytest
from tests.episodes.talkers import episodes, play, prompts, tokenizer
from tests.episodes.worlds import Answers, Keeper, Mixed

from posttrain.episodes.conduct import Conduct
from posttrain.experience.metrics import turn_metrics


def conduct(environment, tools=None) -> Conduct:
    return Conduct(environment, {}, tools or {}, most_characters=100, seed=0)


def calls(*names: str, problem: str = "") -> dict:
    made = [{"type": "function", "id": "c", "function": {"name": n, "arguments": {"place": "x"}}} for n in names]
    told = [[name, {"place": "x"}, problem] for name in names]
    return {"message": {"role": "assistant", "content": "", "tool_calls": made}, "calls": told}


def test_tools_of_an_environment_share_what_it_remembers():
    one = conduct(Keeper, {"see": lambda place: "a dog"})
    assert one.offers()["speaks"] is False
    assert [schema["function"]["name"] for schema in one.offers()["schemas"]] == ["look"]
    results = [message["content"] for message in one.step(**calls("look", "see", "look"))["messages"]]
    assert results == ["b", "a dog", "c"]
    assert one.step({"role": "assistant", "content": "a"}, []) == {
        "done": True,
        "reward": 2.0,
        "metrics": {"seen": 2.0},
    }


def test_an_environment_that_offers_schemas_answers_calls_itself():
    one = conduct(Answers)
    assert one.offers()["speaks"] is True
    assert [m["content"] for m in one.step(**calls("look", "broken"))["messages"]] == ["x", "x"]
    assert [m["content"] for m in one.step(**calls("look", problem="no JSON"))["messages"]] == ["unreadable"]
    assert one.step({"role": "assistant", "content": "a"}, [])["done"]


def test_functions_and_schemas_are_not_offered_together():
    with pytest.raises(TypeError, match="an environment must answer all calls itself, or none"):
        conduct(Mixed)


@pytest.mark.parametrize("answer", [[], ()])
def test_a_step_without_a_message_is_an_error(answer):
    """Only None ends a conversation. A turn after nothing has no place in it."""

    class Silent:
        def step(self, message):
            return answer

    with pytest.raises(TypeError, match=r"step returned no message: .* or None at the end"):
        conduct(Silent).step({"role": "assistant", "content": "a"}, [])


def test_a_prompt_of_the_environments_own_stands_in_place_of_the_rows():
    with episodes("Keeper") as one:
        asked = prompts(8)
        found = list(chain(*play(one, asked, group_size=2)))
    words = tokenizer()
    for completion, prompt in zip(found, [prompt for prompt in asked for _ in range(2)], strict=True):
        begin, end = completion.given[0]
        assert (begin, completion.starts[0]) == (0, 0)
        [letter] = [message["content"] for message in prompt.messages or ()]
        named = "<unk>"  # the tool's name in this tokenizer
        assert words.decode(list(completion.ids[:end])) == f"{named} user {letter} h assistant"
        assert completion.episode is not None
        assert completion.episode.metrics == {"seen": completion.episode.reward or 0.0}
    metrics = turn_metrics(found)
    assert "environment/metrics/seen" in metrics
