"""The explorer's page without a browser: it is well formed, makes no requests, and agrees with planner and advisor."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.catalogue import catalogue
from tests.lab.explore.planned import planned, random_selection

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.base import NEEDS
from posttrain.cli import run
from posttrain.lab.advise.advisor import advise
from posttrain.lab.explore.choices import GROUPS, choices, settings_of, words, written
from posttrain.lab.explore.page import render
from posttrain.lab.explore.plan_numbers import PHASES, ROLES
from posttrain.lab.explore.walk import questions
from posttrain.lab.plan.verdict import Verdict

VOID = {"meta", "input", "br", "link", "img", "hr", "col"}


FEW = {"model": ("0.5b", "7b"), "tokens": ("2048",), "group": ("8",), "gpus": ("1", "8", "64")}


def subset(fewer):
    return {
        name: replace(choice, values={key: choice.values[key] for key in fewer.get(name, choice.values)})
        for name, choice in choices().items()
    }


@pytest.fixture(scope="module")
def offered():
    """A subset of the choices that is planned quickly."""
    return subset(FEW)


@pytest.fixture(scope="module")
def asked():
    return questions()[:4]


@pytest.fixture(scope="module")
def html(offered, asked):
    return render(offered, asked)


@pytest.fixture(scope="module")
def told(html):
    """The data that the page's script looks up."""
    return data_of(html)


def data_of(html):
    return json.loads(html.partition('id="explore-data">')[2].partition("</script>")[0])


class Outline(HTMLParser):
    """Parser that records every element with its attributes, and complains if elements are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> does not close what is open"

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.mark.slow
def test_the_page_is_well_formed_and_every_field_has_a_name(html):
    outline = Outline(html)
    ids = [attributes["id"] for _, attributes in outline.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    labels = {attributes.get("for") for attributes in outline.all("label")}
    assert {select["id"] for select in outline.all("select")} <= labels
    assert {one["aria-labelledby"] for _, one in outline.elements if one.get("aria-labelledby")} <= set(ids)
    assert [tag for tag, _ in outline.elements if tag in ("h1", "main", "footer")] == ["main", "h1", "footer"]


@pytest.mark.slow
def test_the_page_asks_nobody_for_anything(html):
    outline = Outline(html)
    addresses = [one.get(name) for _, one in outline.elements for name in ("src", "href", "action")]
    assert all(address.startswith("#") for address in addresses if address is not None)
    assert "url(" not in html.partition("</style>")[0]
    [policy] = [one["content"] for one in outline.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert len(html) < 1_500_000


def looked_up(told, key: str, chosen) -> list[dict[tuple[str, str], int]]:
    """Look a plan up like the script: the shape by the variant, and the place in each table by the axes."""
    [card] = [one for one in told["algorithms"] if one["key"] == key]
    variant = told["variants"].index({name: chosen[name] for name in told["variants"][0]})
    found = []
    for phase in told["shapes"][card["shapes"][variant]]:
        parts = {}
        for part, table in phase:
            place = 0
            for axis in told["tables"][table]["axes"]:
                place = place * len(told["axes"][axis]) + told["axes"][axis].index(chosen[axis])
            if number := told["tables"][table]["bytes"][place]:
                parts[told["parts"][part]["role"], told["parts"][part]["what"]] = number
        found.append(parts)
    return found


@catalogue("seed", range(24))
def test_the_page_carries_the_numbers_of_the_planner(told, offered, seed):
    check_numbers(told, offered, seed)


@pytest.mark.slow
def test_a_page_with_more_choices_carries_the_numbers_of_the_planner(asked):
    offered = subset({**FEW, "tokens": ("2048", "8192", "32768")})
    told = data_of(render(offered, asked))
    for seed in range(48):
        check_numbers(told, offered, seed)


def check_numbers(told, offered, seed):
    chosen = random_selection(random.Random(seed), offered)
    plan = planned(chosen["a"], chosen)
    assert looked_up(told, chosen["a"], chosen) == plan.parts
    [device] = [one for one in told["devices"] if one["key"] == chosen["device"]]
    assert device["bytes"] == plan.capacity
    most = max(plan.totals)
    answer = next((i for i, limit in enumerate(device["most"]) if most <= limit), 3)
    assert ("yes", "probably", "hardly", "no")[answer] == plan.answer


@catalogue("seed", range(24))
def test_the_command_sets_what_was_planned(told, offered, seed):
    """The command is put together like in the script: from the fixed settings and those of each choice."""
    chosen = random_selection(random.Random(seed), offered)
    [card] = [one for one in told["algorithms"] if one["key"] == chosen["a"]]
    settings = [card["fixed"], *(values.get(chosen[choice], "") for choice, values in card["plan"].items())]
    command = " ".join(filter(None, settings)).replace("SIZE", chosen["model"])
    assert sorted(shlex.split(command)) == sorted(shlex.split(written(settings_of(chosen["a"], chosen))))


@pytest.mark.parametrize("device", ["rtx-4090", "h100"])
def test_many_machines_share_one_copy_on_every_device(told, offered, device):
    """A small model surely fits on each machine of H100s. Left to itself, a run would keep one copy per machine."""
    start = {name: choice.start for name, choice in offered.items()}
    chosen = {**start, "model": "0.5b", "gpus": "64", "device": device}
    assert looked_up(told, "grpo", chosen) == planned("grpo", chosen).parts


def test_four_models_for_ppo_two_for_grpo_with_a_reference_one_for_simpo(told, offered):
    chosen = {name: choice.start for name, choice in offered.items()}

    def models(key, **change):
        parts = looked_up(told, key, {**chosen, **change})[PHASES.index("train")]
        return {role for role, what in parts if what == "weights"}

    assert models("ppo", reward="model") == {"policy", "critic", "reference", "reward model"}
    assert models("grpo", kl="on") == {"policy", "reference"}
    assert models("simpo") == {"policy"}


def test_the_most_that_gets_an_answer_is_the_most_that_does(told):
    device = told["devices"][0]
    for limit, answer in zip(device["most"], ("yes", "probably", "hardly"), strict=True):
        for more, same in ((0, True), (1, False)):
            said = Verdict(needed=limit + more, available=device["bytes"], error=0.25).answer
            assert (said == answer) == same


def wander(walk, seed):
    """Walk at random. Return the places of the questions with the chosen answers, and the advice at the end."""
    rng, place, taken = random.Random(seed), walk["nodes"][walk["root"]], []
    while "next" in place:
        taken.append((place["question"], rng.randrange(len(place["next"]))))
        place = walk["nodes"][place["next"][taken[-1][1]]]
    return taken, walk["advice"][place["advice"]]


def check_walk(walk, asked, seed):
    taken, said = wander(walk, seed)
    facts = {name: value for q, a in taken for name, value in asked[q].answers[a].facts.items()}
    advice = advise(**facts)
    texts = walk["texts"]
    ranked = [walk["standings"][one] for one in said["ranked"]]
    assert [one["key"] for one in ranked] == [one.algorithm for one in advice.recommendations]
    for one, told in zip(ranked, advice.recommendations, strict=True):
        assert [texts[t] for t in one["for"]] == [[r.text, "; ".join(r.sources)] for r in told.reasons]
        assert [texts[t] for t in one["against"]] == [[r.text, "; ".join(r.sources)] for r in told.concerns]
    for name in ("before", "contradictions"):
        assert [texts[t] for t in said[name]] == [[p.text, "; ".join(p.sources)] for p in getattr(advice, name)]


@catalogue("seed", range(12))
def test_the_walk_ends_where_the_advisor_does(told, asked, seed):
    check_walk(told["walk"], asked, seed)


def test_the_command_that_the_walk_shows_says_the_same(told, capsys):
    walk = told["walk"]
    for seed in range(4):
        taken, said = wander(walk, seed)
        flags = [flag for q, a in taken for flag in walk["questions"][q]["answers"][a]["flags"].split()]
        assert run(["advise", *flags, "--json"]) == 0
        advice = json.loads(capsys.readouterr().out)
        ranked = [walk["standings"][one]["key"] for one in said["ranked"]]
        assert [one["algorithm"] for one in advice["recommendations"]] == ranked


@pytest.mark.slow
def test_the_whole_walk_ends_where_the_advisor_does():
    from posttrain.lab.explore.walk import Walk

    walk = json.loads(json.dumps(Walk().to_json()))
    for seed in range(300):
        check_walk(walk, questions(), seed)


def test_no_question_is_asked_whose_answer_does_not_matter(told):
    inner = [node for node in told["walk"]["nodes"] if "next" in node]
    assert all(len(set(node["next"])) > 1 for node in inner)
    assert {node["question"] for node in inner} == set(range(4))


def test_every_algorithm_can_be_shown(told, html):
    assert [shown["key"] for shown in told["algorithms"]] == list(ALGORITHMS)
    assert all(html.count(f'<option value="{key}"') == 2 for key in ALGORITHMS)
    assert set(words()["needs"]) == set(NEEDS)
    assert all(kind().group_size_needed <= min(GROUPS) for kind in ALGORITHMS.values() if kind.data_kind == "prompts")
    assert {part["role"] for part in told["parts"]} <= set(ROLES)


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path, capsys):
    assert run(["explore", "--out", str(tmp_path / "page.html"), "--json"]) == 0
    written = (tmp_path / "page.html").read_bytes()
    assert json.loads(capsys.readouterr().out) == {"page": str(tmp_path / "page.html"), "bytes": len(written)}
    assert len(written) < 1_500_000
