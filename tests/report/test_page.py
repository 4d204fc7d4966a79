"""report.html: one file without external parts, no output of a model can act, and its statements are right."""

import base64
import hashlib
import json
import random
import re
import shutil
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.catalogue import catalogue, few
from tests.report.synthetic_run import evaluation, rollout_row, write_lines, write_rollouts, write_run

from posttrain.report.page import render, write_report
from posttrain.report.samples import chosen_steps, shade, token_pieces
from posttrain.report.store import read_run

PAYLOADS = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<!-- <script> --",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</pre></span></article><h1>owned</h1>",
    "</style><style>*{display:none}</style>",
    "javascript:alert(1)",
    "<a href='javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><button>go",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "]]><![CDATA[<script>alert(1)</script>",
    "\u202egnp.exe\u202c \u2066isolate\u2069",
    "\x1b[31mred\x1b]0;title\x07",
    "\x00\x08\x7f\u2028\u2029\ufeff",
    "\U000e0041\U000e0042",
    "{{7*7}} ${7*7} `backtick` \\u003cscript\\u003e",
]


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser would find them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.ids: set[str] = set()
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids |= {value for name, value in attrs if name == "id" and value}

    def handle_data(self, data):
        self.text += data


def payload_run(folder, payload: str):
    """Put the payload into every place that can hold foreign text."""
    row = rollout_row(f"prompt {payload}", f"completion {payload}", 1.0, 0.5, random.Random(0))
    plain = {**rollout_row(f"p {payload}", f"c {payload}", 0.0, -0.5, random.Random(0), row=1), "completion_ids": []}
    write_rollouts(folder, 60, [row, {**plain, "finish_reason": payload, "reward/<b>": 1.0}])
    write_lines(folder / "events.jsonl", [{"time": payload, "step": 1, "kind": "warning", "message": payload}])
    write_lines(
        folder / "metrics.jsonl",
        [{"step": s, "reward": s / 2, f"rewards/{payload}/mean": s, payload: 1} for s in (1, 2)],
    )
    found = {**evaluation(0.5), "check": {payload: {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}}}
    (folder / "evaluation.json").write_text(json.dumps({"baseline": found, "trained": found}))
    (folder / "error.json").write_text(json.dumps({"type": payload, "message": payload, "step": payload}))
    config = json.dumps({"model": {"path": payload}, "algorithm": {"name": payload}, "seed": payload})
    (folder / "config.yaml").write_text(config + f"\nx: {json.dumps(payload)}  # file: {payload}\n")
    return folder


def test_the_page_is_one_file_that_needs_nothing_from_outside(run_folder):
    page = Page(write_report(run_folder).read_text())
    sources = [attributes.get(name) for _, attributes in page.elements for name in ("src", "href", "srcset", "data")]
    assert [source for source in sources if source and not source.startswith("#")] == []
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert write_report(run_folder).stat().st_size < 400_000


def test_the_policy_allows_exactly_the_page_s_own_style_and_script(run_folder):
    source = write_report(run_folder).read_text()
    policy = next(a["content"] for tag, a in Page(source).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not [a for _, a in Page(source).elements if "style" in a], "style attributes would be blocked"


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> Page:
    folder = write_run(tmp_path_factory.mktemp("harmless") / "demo", prompts=1)
    return Page(render(read_run(payload_run(folder, "harmless"))))


@catalogue("payload", PAYLOADS)
def test_nothing_that_others_wrote_becomes_markup(tmp_path, harmless, payload):
    """Each payload replaces the one before, in all files."""
    folder = tmp_path / "demo"
    folder = folder if folder.exists() else write_run(folder, prompts=1)
    hostile_source = render(read_run(payload_run(folder, payload)))
    hostile = Page(hostile_source)
    tags = [
        tag for tag, _ in hostile.elements if tag != "span"
    ]  # one span per token: a different text has a different number
    assert tags == [tag for tag, _ in harmless.elements if tag != "span"]
    assert not [name for _, attributes in hostile.elements for name in attributes if name.startswith("on")]
    assert hostile.ids == harmless.ids, "the page must still have all its parts"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]", hostile_source)


def test_hostile_text_is_still_readable(run_folder):
    page = Page(render(read_run(payload_run(run_folder, "</script><b>&amp;"))))
    assert "completion </script><b>&amp;" in page.text
    bidi = Page(render(read_run(payload_run(run_folder, "\u202eabc"))))
    assert "⟨U+202E⟩abc" in bidi.text


@pytest.mark.slow
def test_a_completion_of_a_megabyte_is_cut_with_a_note(run_folder):
    text = "x" * 1_000_000
    row = {**rollout_row("p" * 10_000, "short", 1.0, 0.5, random.Random(0)), "completion": text}
    long_ids = {**row, "row": 1, "completion_ids": [65] * 1_000_000, "advantages": [0.1] * 1_000_000, "logprobs": []}
    write_rollouts(run_folder, 60, [{**row, "completion_ids": []}, long_ids])
    path = write_report(run_folder)
    page = path.read_text()
    assert "cut here: 4,000 of 1,000,000 characters shown" in page
    assert "cut here: 500 of 1,000,000 tokens shown" in page
    assert "cut here: 4,000 of 10,000 characters shown" in page
    assert path.stat().st_size < 500_000


def test_the_verdict_states_both_scores_their_intervals_and_that_they_do_not_overlap(run_folder):
    text = Page(write_report(run_folder).read_text()).text
    assert "The model improved." in text
    assert "22%16% to 30%→95%90% to 98%" in text
    assert "The 95% intervals do not overlap" in text
    assert "Prompt by prompt the change is +73 points, interval +64 to +80." in text
    assert "“exact_match”, which training never saw, went from 20% (14% to 28%) to 94% (88% to 97%) and agrees." in text
    assert "Loss on the reference text went from 3.214 to 3.251 nats per token (+1.2%)" in text


def test_every_section_and_plot_of_a_whole_run_is_there(run_folder):
    page = Page(write_report(run_folder).read_text())
    assert {"result", "noticed", "learning", "samples", "proofs", "events", "config", "chart-data"} <= page.ids
    titles = [
        "Reward", "Held-out score", "Groups with signal", "Completion length", "Truncated and unscored", "Entropy",
        "Size of the update", "Time per step", "Gradient norm", "Sampler against trainer", "Loss", "Memory",
    ]  # fmt: skip
    labels = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    drawn = [label.split(".")[0] for label in labels]
    assert [title for title in titles if title not in drawn and title != "Time per step"] == []
    assert any(
        "Time per step. The trainer waits 62% of the time for samples and 4.2% for late rewards" in label
        for label in labels
    )
    assert "The same at every step:Clipped tokens" in page.text, "a metric that never changes is shown as a number"


def data_of(source: str) -> dict[str, Any]:
    return json.loads(re.search(r'id="chart-data">(.*?)</script>', source, re.DOTALL)[1])


def test_what_was_learned_stands_before_what_went_wrong(run_folder):
    add_alarm(run_folder)
    source = write_report(run_folder).read_text()
    places = [source.index(f'<section id="{name}"') for name in ("result", "learning", "alarms", "noticed", "proofs")]
    assert places == sorted(places)


def add_alarm(folder) -> None:
    with (folder / "events.jsonl").open("a") as out:
        out.write(json.dumps({"kind": "alarm", "alarm": "length", "step": 40, "message": "longer"}) + "\n")


def test_every_plot_is_a_picture_with_words_a_table_and_the_numbers_for_a_script(run_folder):
    source = write_report(run_folder).read_text()
    page, data = Page(source), data_of(source)
    figures = [found["data-chart"] for tag, found in page.elements if tag == "figure" and "data-chart" in found]
    assert len(set(figures)) == len(figures), "each plot has its own numbers"
    assert set(figures) == data["charts"].keys()
    labels = [found["aria-label"] for tag, found in page.elements if tag == "svg" and found["role"] == "img"]
    reward = next(label for label in labels if label.startswith("Reward."))
    assert re.fullmatch(r"Reward\. each step: 0\.\d+ at step 1, 0\.\d+ at step 60, lowest .*, highest .*", reward)
    assert page.text.count("Values") == len(figures)
    rewards = [json.loads(line)["reward"] for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    drawn = data["charts"]["reward"]["series"][0]
    assert drawn["x"] == list(range(1, 61))
    assert drawn["y"] == pytest.approx(rewards, rel=1e-5)
    assert data["charts"]["reward"]["series"][1]["derived"], "a mean is not smoothed again"
    heldout = data["charts"]["held-out-score"]["series"][0]
    assert heldout["y"] == pytest.approx([0.21875, 0.65625, 0.953125])
    assert all(low < mean < high for low, mean, high in zip(heldout["low"], heldout["y"], heldout["high"], strict=True))


def test_steps_can_be_told_in_tokens_and_in_seconds(run_folder):
    (clock,) = data_of(write_report(run_folder).read_text())["clocks"]
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert clock["tokens"][0] == clock["seconds"][0] == [0.0, 0.0], "both clocks are zero before the first step"
    assert clock["tokens"][1:] == [[row["step"], row["num_tokens"]] for row in rows]
    assert clock["seconds"][-1] == [60, pytest.approx(sum(row["time/step"] for row in rows))]


@pytest.mark.slow
@pytest.mark.parametrize("steps", few([10_000, 30_000], 10_000))
def test_a_long_run_has_a_page_of_bounded_size_that_keeps_its_spikes(run_folder, steps):
    rows = [{"step": step, "reward": float(step == 7_777), "num_tokens": step} for step in range(1, steps + 1)]
    write_lines(run_folder / "metrics.jsonl", rows)
    source = write_report(run_folder).read_text()
    drawn = data_of(source)["charts"]["reward"]["series"][0]
    assert len(drawn["x"]) <= 1002
    assert drawn["y"][drawn["x"].index(7_777)] == 1
    assert len(data_of(source)["clocks"][0]["tokens"]) == 500


def test_titles_that_differ_by_signs_alone_have_numbers_of_their_own(run_folder):
    write_lines(run_folder / "metrics.jsonl", [{"step": s, "a/b": s, "a-b": -s, "Reward": 9 * s} for s in (1, 2)])
    charts = data_of(write_report(run_folder).read_text())["charts"].values()
    drawn = {chart["title"]: chart["series"][0]["y"] for chart in charts}
    assert (drawn["a/b"], drawn["a-b"], drawn["Reward"]) == ([1, 2], [-1, -2], [9, 18])


def test_tokens_carry_their_advantage_and_the_text_is_whole(run_folder):
    page = write_report(run_folder).read_text()
    spans = re.findall(r'<span class="([pn]\d|z)" data-t="(\d+)\|(-?\d+\.\d+)\|(-?\d+\.\d+)">([^<]*)</span>', page)
    assert {shade for shade, *_ in spans} >= {"p4", "n4"} or len({shade for shade, *_ in spans}) > 2
    assert all((float(a) > 0) == (s[0] == "p") and (float(a) < 0) == (s[0] == "n") for s, _, a, _, _ in spans)
    assert re.search(r"\d+ \+ \d+ = \d+ ✓", Page(page).text), "a character of three tokens is shown once, whole"


def test_a_character_of_several_tokens_appears_with_the_last_of_them(run_folder):
    decode = token_pieces(read_run(run_folder))
    ids = [*b"a", *"✓".encode()]
    from tests.report.synthetic_run import tokenizer

    assert decode(tokenizer().encode("a✓").ids) == ["a", "", "", "✓"]
    assert len(ids) == 4


def test_groups_with_signal_come_first_and_the_rest_is_counted(run_folder):
    rng = random.Random(0)
    rows = [rollout_row(f"group {g}", "x", float(g == 9 and i), 0.0, rng, group=g) for g in range(10) for i in range(2)]
    write_rollouts(run_folder, 60, rows)
    text = Page(write_report(run_folder).read_text()).text
    assert "10 prompts, 6 of them shown, those with signal first · signal in 1 of 10 groups" in text
    step = text[text.index("10 prompts, 6 of them") :]
    assert step.index("group 9") < step.index("group 0")
    assert "all equal, no signal" in step


def test_a_group_that_was_replaced_is_called_that(run_folder):
    row = rollout_row("p", "x", 0.0, 0.0, random.Random(0))
    unused = {"discarded": True, "advantage": None, "advantages": None}
    write_rollouts(run_folder, 60, [{**row, "discarded": False}, {**row, **unused, "row": 1, "group": 1}])
    page = write_report(run_folder).read_text()
    assert page.count("replaced by another group, not trained") == 1
    assert "advantage n/a" in page


def test_a_run_without_rewards_is_not_called_unscored(run_folder):
    row = rollout_row("p", "x", 0.0, 0.0, random.Random(0))
    write_rollouts(run_folder, 60, [{**row, "reward": None, "scored": None}])
    page = write_report(run_folder).read_text()
    assert '<b class="reward none">' not in page
    assert "no reward could be computed" not in page


def test_an_unscored_answer_is_called_that_and_not_zero(run_folder):
    row = rollout_row("p", "x", 1.0, 0.0, random.Random(0))
    write_rollouts(run_folder, 60, [row, {**row, "row": 1, "reward": None, "scored": False, "reward/numeric": None}])
    page = write_report(run_folder).read_text()
    assert '<b class="reward none">unscored</b>' in page
    assert "mean reward 1" in page


def test_settings_show_their_origin_and_defaults_can_be_hidden(run_folder):
    page = write_report(run_folder).read_text()
    assert '<div class="set"><code>  clip_high: 0.28</code><span>command line</span></div>' in page
    assert '<div class="default"><code>  clip_low: 0.2</code><span>default</span></div>' in page


def test_events_tell_what_an_evaluation_found(run_folder):
    text = Page(write_report(run_folder).read_text()).text
    assert "held-out: accuracy 66% (57% to 73%)" in text
    assert "1 routine events (publishes, checkpoints) are not shown here" in text


def test_how_a_run_computes_is_among_the_events(run_folder):
    write_lines(run_folder / "events.jsonl", [{"step": 0, "kind": "compute", "message": "products by oneDNN"}])
    assert "products by oneDNN" in Page(write_report(run_folder).read_text()).text


def test_a_run_that_failed_says_so_first(run_folder):
    (run_folder / "error.json").write_text(
        json.dumps({"type": "PublishError", "message": "the sampler runs policy version 3", "step": 4, "exit_code": 4})
    )
    write_lines(run_folder / "events.jsonl", [{"kind": "error", "step": 4, "message": "PublishError"}])
    (run_folder / "evaluation.json").write_text(json.dumps({"baseline": evaluation(0.22)}))
    text = Page(write_report(run_folder).read_text()).text
    assert "stopped with an error" in text
    assert text.index("PublishError after step 4") < text.index("The run stopped with an error.")
    assert "Before training, held-out accuracy was 22% (16% to 30%)." in text
    assert re.search("The sampler ran the weights that were trained.{1,3}failed", text)


@pytest.mark.parametrize(("step", "further"), [(4, False), (2, True)])
def test_a_run_that_failed_names_its_newest_evaluation(run_folder, step, further):
    """A checkpoint after it has not been measured, and the page says how to."""
    (run_folder / "error.json").write_text(json.dumps({"type": "GuardError", "message": "no", "step": 5}))
    told = [
        {"kind": "evaluation", "step": number, "message": "held-out", "evaluation": evaluation(share)}
        for number, share in ((0, 0.22), (1, 0.5), (step, 0.0))
    ]
    write_lines(run_folder / "events.jsonl", [*told, {"kind": "error", "step": 5, "message": "GuardError"}])
    (run_folder / "evaluation.json").write_text(json.dumps({"baseline": evaluation(0.22)}))
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)
    (run_folder / "checkpoints" / "step-000004" / "model").mkdir(parents=True)
    text = Page(write_report(run_folder).read_text()).text
    assert "Before training, held-out accuracy was 22% (16% to 30%)." in text
    assert f"At step {step}, in its newest evaluation, it was 0% (0% to 2.9%)." in text
    assert ("measures its checkpoint of step 4 on the same rows" in text) == further


def test_a_supervised_run_is_judged_by_its_held_out_loss(run_folder):
    write_lines(run_folder / "metrics.jsonl", [{"step": s, "loss": 3 / s, "grad_norm": 1.0 / s} for s in range(1, 30)])
    sides = {
        "baseline": {"prompts": 9, "loss": {"mean": 3.0, "low": 2.9, "high": 3.1, "n": 9}},
        "trained": {"prompts": 9, "loss": {"mean": 1.0, "low": 0.9, "high": 1.1, "n": 9}},
    }
    (run_folder / "evaluation.json").write_text(json.dumps(sides))
    write_lines(run_folder / "events.jsonl", [{"kind": "end"}])
    text = Page(write_report(run_folder).read_text()).text
    assert "The model improved." in text
    assert "on the same 9 examples before and after" in text


def test_a_run_of_one_step_has_a_page(run_folder):
    path = run_folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert "The model improved." in write_report(run_folder).read_text()


def test_the_page_is_replaced_as_a_whole(run_folder):
    write_report(run_folder)
    write_report(run_folder)
    assert [path.name for path in run_folder.glob("*report*")] == ["report.html"]


def test_chosen_steps_and_shades():
    assert chosen_steps([]) == []
    assert chosen_steps([5]) == [5]
    assert [shade(a, 0.0) for a in (0.0, 1.0)] == ["z", "z"]
    assert shade(float("nan"), 1.0) == "z"


def test_samples_show_the_gold_answer_the_extracted_ones_and_why_and_say_equal_answers_once(run_folder):
    rng = random.Random(0)
    given = [("is 72", "72", "equal to the gold answer", 1.0)] * 3 + [("is 70", "70", "70 is not 72", 0.0)]
    rows = []
    for text, extracted, reason, reward in given:
        row = {**rollout_row("how many?", text, reward, 0.0, rng), "answer": "72", "reward/math": reward}
        rows.append(
            {**row, "reward/math/extracted": extracted, "reward/math/reason": reason, "reward/math/seconds": 0.1}
        )
    write_rollouts(run_folder, 60, rows)
    text = Page(write_report(run_folder).read_text()).text
    assert "gold answer 72 · given 72 × 3, 70 × 1" in text
    assert text.count("math reason equal to the gold answer") == 1
    assert "3 × the same answer" in text
    assert "math reason 70 is not 72 · math extracted 70" in text or "math extracted 70 · math reason 70" in text
    assert "math/reason" not in text
