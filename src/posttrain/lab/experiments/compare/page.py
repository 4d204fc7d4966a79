"""Writes `report.html` of a comparison: the verdict, the arms with their intervals, their costs and learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from posttrain.config.text import redact
from posttrain.files import write_atomically
from posttrain.lab.experiments.compare.analysis import Analysis, Pair
from posttrain.lab.experiments.compare.charts import cost_plot, difference_bars, learning_plots, score_bars
from posttrain.lab.experiments.compare.verdict import amount, claims, is_no_better, verdict
from posttrain.lab.experiments.compare.verdict import table as arm_table
from posttrain.report.document import Link, Section, cards, document, heading, table
from posttrain.report.svg import compact
from posttrain.report.text import escaped

METHOD = (
    "Runs are paired by seed (same start, order of the data and random numbers) and by held-out example. The interval "
    "of a score adds the variance over seeds and over examples, each with its quantile of Student's t. It is too wide "
    "rather than too narrow. p-values are corrected for the number of pairs of arms (Holm). A measure with one number "
    "per run has Student's t interval over the seeds, with p-values corrected in the same way. Few seeds give wide "
    "intervals. The intervals do not describe rare collapses, so collapses are counted."
)


def write_page(folder: Path, found: Analysis) -> Path:
    """Write `report.html`. It links to the runs that have a report of their own."""
    path = folder / "report.html"
    write_atomically(path, page(found, folder))
    return path


def page(found: Analysis, folder: Path) -> str:
    """Return the page as HTML."""
    curves = learning_plots(found)
    sections: list[Section] = [
        ("result", "Result", _result(found)),
        ("arms", "Arms", _arms(found)),
        ("cost", "Cost", _cost(found)),
        ("learning", "Learning", _learning(cards(curves)) if curves else ""),
        ("numbers", "Numbers", _measures(found)),
        ("runs", "Runs", _runs(found, folder)),
        ("design", "Design", _design(found)),
    ]
    name = found.design.title or folder.resolve().name
    return document(
        name, _title(found, name), sections, curves, footer="Written by posttrain from the runs of this folder."
    )


def _title(found: Analysis, name: str) -> str:
    design = found.design
    lost = sum(len(arm.lost) for arm in found.arms)
    state = ("unfinished", f"{lost} runs missing") if lost else ("finished", "every run finished")
    facts = f"{len(design.arms)} arms · {len(design.seeds)} seeds · {design.budget} for each run"
    return heading(name, facts, status=state[0], words=state[1])


def _result(found: Analysis) -> str:
    first, *others = verdict(found)
    won = [found.arm(better) for better, _, _ in claims(found)]
    tone = "good" if any(not is_no_better(found, arm) for arm in won) else "plain"
    says = "".join(f"<p>{escaped(sentence)}</p>" for sentence in others)
    bars = score_bars(found)
    figure = f"<div><figure><figcaption><b>held-out {escaped(found.measure)}</b></figcaption>{bars}</figure></div>"
    text = f'<div><h2 class="sentence">{escaped(first)}</h2><div class="says">{says}</div></div>'
    return f'<div class="verdict {tone}{"" if bars else " alone"}">{text}{figure if bars else ""}</div>'


def _arms(found: Analysis) -> str:
    head, rows = arm_table(found)
    pairs = _pair_table(found)
    bars = difference_bars(found)
    figure = (
        f'<figure class="card"><h3>Differences</h3><p class="hint">Paired, with intervals.</p>{bars}</figure>'
        if bars
        else ""
    )
    lead = "Means over the finished runs; scores have intervals. Before training: the score of the same runs."
    return (
        f'<h2>Arms</h2><p class="lead">{lead}</p>{table(head, rows)}'
        f'<h3 class="apart">Pair by pair</h3>{pairs}<div class="charts apart">{figure}</div>'
        f'<p class="hint apart">{escaped(METHOD)}</p>'
    )


def _cost(found: Analysis) -> str:
    plot, hint = cost_plot(found)
    if not plot:
        return ""
    lead = (
        "Better is up, cheaper is left. The dashed line joins the arms that no other arm beats in both. A hollow mark: "
        "some runs of the arm "
    )
    lead += "were lost or collapsed."
    card = f'<figure class="card"><h3>Quality and cost</h3><p class="hint">{escaped(hint)}</p>{plot}</figure>'
    return f'<h2>Cost and steadiness</h2><p class="lead">{lead}</p><div class="charts">{card}</div>'


def _learning(shown: str) -> str:
    lead = "Held-out score, averaged over the finished seeds. The band spans the worst seed to the best."
    return f'<h2>Learning</h2><p class="lead">{lead}</p>{shown}'


def _measures(found: Analysis) -> str:
    rows = []
    for name, pairs in found.of_measures.items():
        how = found.measures[name]
        sign = "×" if how.as_ratio else ""
        rows += [
            [
                name if place == 0 else "",
                f"{pair.first} {'/' if how.as_ratio else '−'} {pair.second}",
                f"{compact(pair.estimate.mean)}{sign}",
                _limits(pair, lambda value, sign=sign: f"{compact(value)}{sign}"),
                _p(pair),
                f"{pair.estimate.seeds} of {len(found.design.seeds)}",
            ]
            for place, pair in enumerate(pairs)
        ]
    if not rows:
        return ""
    lead = "Finished runs, paired by seed. A × marks the ratio first / second; other numbers are first minus second."
    if found.design.target is not None:
        lead += " What it takes to the target is compared over the seeds with which both arms reached it. There is no "
        lead += "p if the faster arm missed it, or lost its run, with another seed."
    head = ["number", "arms", "difference", _level(found), "p (Holm)", "seeds"]
    return f'<h2>Other numbers</h2><p class="lead">{lead}</p>{table(head, rows)}'


def _pair_table(found: Analysis) -> str:
    def form(value: float) -> str:
        return f"{100 * value:+.1f}" if found.share else compact(value)

    head = ["first", "second", "difference", _level(found), "p (Holm)", "detectable difference"]
    rows = [
        [
            pair.first,
            pair.second,
            form(pair.estimate.mean),
            _limits(pair, form),
            _p(pair),
            amount(found, pair.smallest) if pair.estimate.has_interval else "-",
        ]
        for pair in found.pairs
        if pair.estimate.seeds
    ]
    return table(head, rows)


def _level(found: Analysis) -> str:
    return f"{100 * found.design.confidence:g}% interval"


def _limits(pair: Pair, form: Callable[[float], str]) -> str:
    own = pair.estimate
    if own.has_interval:
        return f"{form(own.low)} to {form(own.high)}"
    return "none: all seeds agree" if own.seeds > 1 else "none: one seed"


def _p(pair: Pair) -> str:
    return "-" if math.isnan(pair.p) else f"{pair.p:.2g}"


def _runs(found: Analysis, folder: Path) -> str:
    rows = []
    for arm in found.arms:
        for run in arm.runs:
            where = run.folder.relative_to(folder).as_posix() if run.folder.is_relative_to(folder) else ""
            name = f"{run.arm}, seed {run.seed}"
            linked = where and (run.folder / "report.html").exists()
            shown = Link(name, f"{where}/report.html") if linked else name
            state = "collapsed" if run.collapsed and run.status == "finished" else run.status
            score = "-" if run.score is None else compact(run.score)
            start = "-" if run.baseline is None else compact(run.baseline)
            cells = [start, score, str(run.steps), compact(run.tokens), f"{run.seconds:.1f}", state, run.reason]
            rows.append([shown, *cells])
    head = ("run", "before", "after", "steps", "tokens", "seconds", "state", "why")
    return f"<h2>Runs</h2>{table(head, rows)}"


def _design(found: Analysis) -> str:
    rows = [
        [name, ", ".join(f"{key} = {value}" for key, value in redact(changes).items())]
        for name, changes in found.design.arms.items()
    ]
    conditions = [[key, str(value)] for key, value in found.conditions.items() if not key.endswith("_note")]
    words = {True: "yes", False: "no", None: "not recorded"}
    conditions.append(["arms with the same seed gave the same answers before training", words[found.same_start]])
    conditions.append(["arms with the same seed drew the same prompts first", words[found.same_prompts]])
    return f"<h2>Design</h2>{table(['arm', 'changes'], rows)}{table(['conditions', 'found'], conditions)}"
