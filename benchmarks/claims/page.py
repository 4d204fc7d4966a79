"""Write docs/claims.md and its pictures from benchmarks/results/claims.json."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from benchmarks.claims.catalogue import CLAIMS, SCORE, Claim, Number

from posttrain.report.svg import HEIGHT, WIDTH, compact, linear_axis, percent
from posttrain.report.text import escaped

ROOT = Path(__file__).parent.parent.parent
PAGE, PICTURES = ROOT / "docs" / "claims.md", ROOT / "docs" / "images"
RESULT = ROOT / "benchmarks" / "results" / "claims.json"
ABOUT_HALF = (0.4, 0.6)
Found = Literal["holds here", "not shown here", "does not hold here", "not measured"]
Result = Mapping[str, Any]


# --- what was found --------------------------------------------------------------------------------------------------


def pair_of(result: Result, number: Number) -> dict[str, Any] | None:
    """The compared pair in the direction `first` against `second`; None if it was not compared."""
    ratio = result["measures"].get(number.name, {}).get("as_ratio", False)
    pairs = result["pairs"] if number.name == SCORE else result["measure_pairs"].get(number.name, [])
    for pair in pairs:
        if {pair["first"], pair["second"]} == {number.first, number.second}:
            return {**pair, "ratio": ratio} if pair["first"] == number.first else _turned(pair, ratio)
    return None


def _turned(pair: Mapping[str, Any], ratio: bool) -> dict[str, Any]:
    def turn(value: float | None) -> float | None:
        return None if value is None else (1 / value if ratio else -value)

    ends = {"mean": turn(pair["mean"]), "low": turn(pair["high"]), "high": turn(pair["low"])}
    return {**pair, "first": pair["second"], "second": pair["first"], **ends, "ratio": ratio}


def judged(result: Result, number: Number) -> Found:
    """Judge a number by the interval of the pair and its corrected p-value. A single seed proves nothing."""
    pair = pair_of(result, number)
    if pair is None or pair["low"] is None or pair["p_holm"] is None:
        return "not measured"
    if number.says == "about half":
        least, most = ABOUT_HALF
        if least <= pair["low"] and pair["high"] <= most:
            return "holds here"
        return "does not hold here" if pair["low"] > most or pair["high"] < least else "not shown here"
    if pair["p_holm"] >= 1 - result["design"]["confidence"]:
        return "not shown here"
    more = pair["mean"] > (1 if pair["ratio"] else 0)
    return "holds here" if more == (number.says == "more") else "does not hold here"


def judgement(result: Result | None, claim: Claim) -> Found:
    """Judge a claim by its first number. The other numbers help to explain the result."""
    return judged(result, claim.numbers[0]) if result else "not measured"


def in_words(result: Result, number: Number) -> str:
    """A number in words:

    `tokens of a wrong answer: grpo minus dr_grpo is +1.2 (95% interval +0.3 to +2.1, 5 seeds): holds here`"""
    pair = pair_of(result, number)
    if pair is None or pair["low"] is None:
        return f"{number.name}: not measured"
    level = f"{100 * result['design']['confidence']:g}% interval"
    seeds = f"{pair['seeds']} seeds, p {pair['p_holm']:.2g}"
    if pair["ratio"]:
        mean, low, high = (f"{pair[key]:.3g}" for key in ("mean", "low", "high"))
        said = f"{number.first} has {mean} times the value of {number.second}"
    else:
        scale, unit = (100, " points") if number.name == SCORE and result["measure"] == "accuracy" else (1, "")
        mean, low, high = (f"{scale * pair[key]:+.3g}".replace("-", "−") for key in ("mean", "low", "high"))
        said = f"{number.first} minus {number.second} is {mean}{unit}"
    return f"{number.name}: {said} ({level} {low} to {high}, {seeds}): **{judged(result, number)}**"


# --- the page --------------------------------------------------------------------------------------------------------

HEAD = """<!-- written by: python -m benchmarks.claims -->

# Claims from the literature, tested on a CPU

    python -m benchmarks.claims            test all claims
    posttrain compare benchmarks/claims/clip_higher.yaml --workers 2       test one claim, with its own page

This page tests seven claims from the literature on tiny models, and shows **which of them hold in this setting**. A
claim that is not shown here may still be true for large models and long answers.

Each claim is one file in [benchmarks/claims](../benchmarks/claims), and `posttrain compare` tests it ([how it
compares](compare.md)). All arms have the same seeds, the same start model and the same budget. Intervals are over
seeds and examples. P-values are corrected for the number of arms. The models are tiny (130 thousand parameters,
characters as tokens, answers of six letters), the runs are short, and the seeds are few. The first number of a claim
decides. *Holds* and *does not hold* need p < 0.05. Everything else is *not shown*, also an effect that is too small
for so few runs.

**† Five of the seven settings were changed after trial runs**, between the first version of the file and the runs on
this page. Each section says what was changed. A p-value is valid only for a setting that was fixed before anybody saw
results. If you keep a setting because it showed an effect, chance looks like an effect more often than p says. So we
repeated the runs of these five claims with all settings fixed and with seeds that no trial run had used, and this page
shows them whatever their result was. One limit remains: we chose the setting itself, so a result says more about this
setting than about others.

| claim | found | numbers |
|---|---|---|
"""


def page_of(results: Mapping[str, Result]) -> str:
    """The whole page."""
    lines = [HEAD.rstrip("\n")]
    for claim in CLAIMS:
        result = results.get(claim.key)
        said = "; ".join(in_words(result, number).rsplit(": **", 1)[0] for number in claim.numbers) if result else ""
        mark = " †" if claim.changed and result else ""
        lines.append(
            f"| [{claim.says}](#{claim.key.replace('_', '-')}) | **{judgement(result, claim)}**{mark} | {said} |"
        )
    for claim in CLAIMS:
        lines += ["", *_section(claim, results)]
    return "\n".join(lines) + "\n"


def _section(claim: Claim, results: Mapping[str, Result]) -> list[str]:
    result = results.get(claim.key)
    lines = [f"## {claim.key.replace('_', ' ')}", "", f"{claim.says} ({claim.source})", ""]
    if result is None:
        return [*lines, f"Not measured yet: `posttrain compare benchmarks/claims/{claim.key}.yaml --workers 2`."]
    lines += [f"- {in_words(result, number)}" for number in claim.numbers]
    lines += [
        "",
        *(f"> {sentence}" for sentence in result["verdict"]),
        "",
        _table(result),
        "",
        " ".join(filter(None, [claim.note, _target(result), _beside(results, claim), _busy(result, claim)])),
        *(["", f"† Changed after trial runs: {claim.changed}."] if claim.changed else []),
    ]
    lines += ["", f"![{claim.says}](images/claim-{claim.key}.svg)", ""]
    return [*lines, f"    posttrain compare benchmarks/claims/{claim.key}.yaml"]


def _target(result: Result) -> str:
    target = result["design"]["target"]
    return "" if target is None else f"The target is {percent(target)} held-out accuracy."


def _busy(result: Result, claim: Claim) -> str:
    """A warning if the claim is about seconds and the comparison itself calls its seconds not comparable."""
    if "seconds" not in claim.numbers[0].name or "not comparable" not in result["conditions"]["seconds_note"]:
        return ""
    return (
        "Other programs were running, and the interval does not account for them. So the direction is shown, and the "
        "factor is rough."
    )


def _beside(results: Mapping[str, Result], claim: Claim) -> str:
    """A sentence for a claim about memory: the figures without the libraries, which are as large as a run of the tiny
    model."""
    number = claim.numbers[0]
    if number.says != "about half" or "ppo_time" not in results:
        return ""
    nothing = results["ppo_time"]["arms"][number.first]["measures"][number.name]
    arms = results[claim.key]["arms"]
    first, second = (arms[arm]["measures"][number.name] - nothing for arm in (number.first, number.second))
    return (
        f"A run of the tiny model takes {nothing:.2f} GB. After subtracting it, {number.first} takes {first:.2f} GB "
        f"and {number.second} {second:.2f} GB, a ratio of {first / second:.2f}. This ratio has no interval."
    )


def _table(result: Result) -> str:
    names = ("peak memory, GB", "training seconds per step", "entropy at the end", *result["design"]["measures"])
    shown = [name for name in dict.fromkeys(names) if any(name in arm["measures"] for arm in result["arms"].values())]
    head = ["arm", result["measure"], "runs", "collapsed", "tokens", *shown]
    rows = [
        [
            name,
            _score(arm["score"]),
            f"{arm['finished']} of {len(result['design']['seeds'])}",
            str(len(arm["collapsed"])),
            _number(arm["tokens"]),
            *(_number(arm["measures"].get(measure)) for measure in shown),
        ]
        for name, arm in result["arms"].items()
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _score(score: Mapping[str, Any]) -> str:
    if score["mean"] is None:
        return "-"
    if score["low"] is None:
        return f"{score['mean']:.3f}"
    return f"{score['mean']:.3f} ({score['low']:.3f} to {score['high']:.3f})"


def _number(value: float | None) -> str:
    return "-" if value is None else compact(value)


# --- pictures --------------------------------------------------------------------------------------------------------

_STYLE = (
    "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#6b7280}.head{fill:#1c1e22;font-weight:600}"
    ".grid{stroke:#e3e3e0}.pair{stroke:#9aa1ab;stroke-width:1.2}.dot{fill:#1f5fa8}.mean{stroke:#c2651a;stroke-width:3}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa1ab}.head{fill:#e8e6e1}.grid{stroke:#30343a}.pair{stroke:#6b727d}"
    ".dot{fill:#6ea8ea}.mean{stroke:#eb9a55}}"
)
_LEFT, _TOP, _BOTTOM = 60, 44, 28


def picture(result: Result, claim: Claim) -> str:
    """Draw the claim's first number for every run: a column for each arm, lines between runs of one seed, and bars for
    the means."""
    number = claim.numbers[0]
    arms = list(result["design"]["arms"])
    values = {
        (run["arm"], run["seed"]): run["score"] if number.name == SCORE else run["measures"].get(number.name)
        for run in result["runs"]
        if run["status"] == "finished"
    }
    known = {key: value for key, value in values.items() if value is not None}
    axis = linear_axis(min(0.0, *known.values()), max(known.values()), HEIGHT - _BOTTOM, _TOP)
    columns = {arm: _LEFT + (WIDTH - _LEFT) * (place + 0.5) / len(arms) for place, arm in enumerate(arms)}
    body = [f'<text class="head" x="8" y="20">{escaped(number.name)}</text>']
    for tick in axis.ticks:
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{axis(tick)}" y2="{axis(tick)}"/>')
        body.append(f'<text x="{_LEFT - 8}" y="{axis(tick) + 4}" text-anchor="end">{escaped(compact(tick))}</text>')
    for seed in result["design"]["seeds"]:
        points = [(columns[arm], axis(known[arm, seed])) for arm in arms if (arm, seed) in known]
        body += [
            f'<line class="pair" x1="{x:g}" y1="{y:g}" x2="{right:g}" y2="{top:g}"/>'
            for (x, y), (right, top) in pairwise(points)
        ]
        body += [f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="4"/>' for x, y in points]
    for arm, x in columns.items():
        body.append(f'<text x="{x:g}" y="{HEIGHT - 8}" text-anchor="middle">{escaped(arm)}</text>')
        own = [value for (name, _), value in known.items() if name == arm]
        y = axis(sum(own) / len(own)) if own else None
        body += [] if y is None else [f'<line class="mean" x1="{x - 22:g}" x2="{x + 22:g}" y1="{y}" y2="{y}"/>']
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    label = escaped(f"{claim.says} {number.name} of every run. A line joins the runs of one seed; the bar is the mean.")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}"><style>{_STYLE}</style>'
        f"{''.join(body)}</svg>\n"
    )


def write(results: Mapping[str, Result]) -> None:
    """Write the page, and a picture for each measured claim."""
    PAGE.write_text(page_of(results))
    for claim in CLAIMS:
        if claim.key in results:
            (PICTURES / f"claim-{claim.key}.svg").write_text(picture(results[claim.key], claim))
