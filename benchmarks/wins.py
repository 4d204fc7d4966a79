"""Real pretrained models that a recipe improves: each recipe on several seeds, measured from the files of its runs.

    python -m benchmarks.wins                               every recipe, seeds 0, 1 and 2
    python -m benchmarks.wins statements --seeds 3          one recipe, one more seed
    python -m benchmarks.wins --page                        write the page again, from the figures on file

The recipes are recipes/wins/*.py. The figures are in benchmarks/results/wins.json and the tables in docs/wins.md. A
recipe is one command, `python recipes/wins/NAME.py --seed N`, and the figures are what its runs measured themselves.
Two more measurements of a pipeline concern the model before the first stage: its accuracy on the held-out prompts, and
its distance to the last model on prompts that no stage was trained on. The runs stay in build/wins.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.seeds import asked_for, with_run
from benchmarks.speed.machine import origin

import posttrain as pt
from posttrain.config import RunConfig, in_folder, load_config
from posttrain.data.split import read_split
from posttrain.evaluate.others import Answered, answer_logprobs, compared, other_prompts
from posttrain.evaluate.trained import trained_model
from posttrain.evaluate.writing import Written
from posttrain.models.load import load_model
from posttrain.pipeline.run import Pipeline
from posttrain.report.heldout import kind_of, measure_of
from posttrain.report.others import forgot, kept
from posttrain.report.store import read_run
from posttrain.report.verdict import in_brief

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes" / "wins"
RESULT = HERE / "results" / "wins.json"
PAGE = HERE.parent / "docs" / "wins.md"
RUNS = HERE.parent / "build" / "wins"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SHOWN = 3
"""Number of prompts of each kind for which the answers before and after are kept."""


def measure(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one recipe on one seed, and collect its figures."""
    began = time.perf_counter()
    run = importlib.import_module(f"recipes.wins.{name}").run(seed, folder)
    seconds = time.perf_counter() - began
    stages = [stage.folder for stage in run.stages] if isinstance(run, Pipeline) else [run.folder]
    policies = [stage for stage in stages if kind_of(read_run(stage).evaluation.get("trained", {})) != "scored pairs"]
    first, last = policies[0], policies[-1]
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "stages": [of_stage(stage) for stage in stages],
        "start": None if first == last else before_all(first, last),
        "others": others_between(first, last),
        "reward_models": reward_models(last),
        "alike": alike(last),
        "samples": samples(last),
        "other_samples": other_samples(first, last),
    }


def of_stage(folder: Path) -> dict[str, Any]:
    """The figures that a run measured itself."""
    run = read_run(folder)
    kl = run.series("kl")
    memory = run.series("memory/peak_rss_gb")
    return {
        "name": folder.name,
        "algorithm": run.setting("algorithm.name"),
        "evaluation": {key: value for key, value in run.evaluation.items() if key != "writing"},
        "text_loss": {
            side: run.evaluation.get("writing", {}).get(side, {}).get("text_loss") for side in ("baseline", "trained")
        },
        "verdict": in_brief(run),
        "kl": kl[-1][1] if kl else None,
        "seconds_in_steps": round(sum(value for _, value in run.series("time/step")), 1),
        "peak_memory_gb": max((value for _, value in memory), default=None),
    }


def before_all(first: Path, last: Path) -> dict[str, Any]:
    """Evaluate the model before the first stage, on the held-out prompts of the last stage with its rewards and its
    independent checks."""
    config = load_config(last / "config.yaml").config
    start = load_config(first / "config.yaml").config
    heldout = read_split(config.data, config.seed).heldout
    rows = [heldout[number].values for number in range(min(len(heldout), config.evaluation.prompts))]
    found = pt.evaluate(
        start.model,
        rows,
        in_folder(config.rewards, last),
        check=in_folder(config.check, last),
        k=0,
        max_completion_length=config.sampling.max_completion_length,
        prompt=config.data.prompt,
        answer=config.data.answer,
        system_prompt=config.data.system_prompt,
    )
    measured = found.greedy_accuracy if found.has_full_mark else found.greedy_score
    return {**measured._asdict(), "check": {label: one._asdict() for label, one in found.check.items()}}


def others_between(first: Path, last: Path) -> dict[str, Any] | None:
    """Compare the last model with the model before the first stage on other prompts; None if the run has none."""
    config: RunConfig = load_config(last / "config.yaml").config
    if config.evaluation.other_prompts is None:
        return None
    if first == last:
        return read_run(last).evaluation["others"]
    before, now = Answered.read(first / "evaluations"), Answered.read(last / "evaluations", "trained")
    loaded = load_model(trained_model(last, config))
    then = answer_logprobs(config, loaded, other_prompts(config, loaded), before.answers)
    confidence = config.evaluation.confidence
    return {
        "prompts": len(now.answers),
        "max_drift": config.evaluation.max_drift,
        "trained": now.measures(confidence),
        **compared(before, now, then, confidence),
    }


def reward_models(folder: Path) -> dict[str, Any]:
    """Label of each reward model of a run -> share of held-out pairs that it puts in the right order."""
    config = load_config(folder / "config.yaml").config
    models = {one.label or "model": Path(one.model) for one in (*config.rewards, *config.check) if one.model}
    return {label: read_run(model).evaluation["trained"]["accuracy"] for label, model in models.items()}


def alike(folder: Path) -> dict[str, float]:
    """Share of held-out prompts that have the same greedy answer as another one, before and after."""
    found = {}
    for side in ("baseline", "trained"):
        texts = [answer["text"].strip() for answer in greedy_answers(folder, side)]
        counts = Counter(texts)
        found[side] = sum(counts[text] > 1 for text in texts) / len(texts)
    return found


def greedy_answers(folder: Path, side: str) -> list[dict[str, Any]]:
    """The greedy answers, each as {prompt, text}. A run on given answers sampled them to show how it writes."""
    measured = folder / "evaluations"
    if not (measured / f"{side}.jsonl").exists():
        return list(Written.read(measured, side).answers)
    lines = map(json.loads, (measured / f"{side}.jsonl").read_text(encoding="utf-8").splitlines())
    return [{"prompt": line["prompt"], "text": line["greedy"]["text"]} for line in lines]


def samples(folder: Path) -> list[dict[str, Any]]:
    """The first held-out prompts, with the greedy answers before and after."""
    return side_by_side(greedy_answers(folder, "baseline"), greedy_answers(folder, "trained"))


def other_samples(first: Path, last: Path) -> list[dict[str, Any]]:
    sides = Answered.read(first / "evaluations"), Answered.read(last / "evaluations", "trained")
    return side_by_side(*(side.answers for side in sides))


def side_by_side(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first answers before and after, in pairs. Both lists have answers to the same prompts."""
    pairs = list(zip(before, after, strict=True))[:SHOWN]
    return [{"prompt": old["prompt"], "before": old["text"], "after": new["text"]} for old, new in pairs]


# --- the page ---------------------------------------------------------------------------------------------------------


def write_page(results: Mapping[str, Any]) -> None:
    """Write the tables between the marks. The text around them is written by hand."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    parts = [part for name, found in results.items() for part in section(name, found["runs"])]
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(parts).rstrip() + "\n\n" + END + tail, encoding="utf-8")


def said(verdict: Mapping[str, Any]) -> str:
    """The headline of a report, and how the model writes worse if the headline does not say so."""
    worse = " and ".join(verdict.get("writes_worse", []))
    told = not worse or worse in verdict["sentence"]
    return verdict["sentence"] + ("" if told else f" It writes worse: {worse}.")


def of_both_stages(run: Mapping[str, Any]) -> str:
    """The verdict on other prompts for the whole path from the pretrained model to the last one."""
    between = {"others": run["others"]}
    if found := forgot(between):
        return f"the model has forgotten: {'; '.join(found)}."
    drift = span_text(run["others"]["drift"])
    within = "within" if kept(between) else "not clearly within"
    return (
        f"the drift on other prompts, {drift} nats per token, is {within} the bound of {run['others']['max_drift']:g}."
    )


def span_text(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def of_scores(run: Mapping[str, Any]) -> list[str]:
    """Additional lines for runs whose answers have a score and are not right or wrong: the parts of the score, or for
    pairs the implicit reward, and the share of equal answers."""
    sides, seed = sides_of(run), f"- seed {run['seed']}"
    if implicit := sides[1].get("implicit"):
        ordered = share(implicit["accuracy"])
        scores = f"{seed}: the implicit reward ranks {ordered} of the held-out pairs correctly; 50% is chance."
    elif measure_of(*sides) == "score":
        parts = [
            f"{label} {shown(sides[0]['rewards'][label], 'score')} → {shown(after, 'score')}"
            for label, after in sides[1]["rewards"].items()
            if after["mean"] != 1  # a gate that is open for all answers
        ]
        scores = f"{seed}: the parts of the held-out score are {'; '.join(parts)}."
    else:
        return []
    learned = [
        f"{seed}: the reward model “{label}” ranks {share(found)} of {found['n']} held-out pairs correctly."
        for label, found in run["reward_models"].items()
    ]
    return [
        *learned,
        scores,
        f"{seed}: the share of held-out prompts with the same answer as another held-out prompt is "
        f"{run['alike']['baseline']:.0%} before the last stage and {run['alike']['trained']:.0%} after it.",
    ]


COLUMNS = (
    "seed",
    "start",
    "before the last stage",
    "after",
    "check",
    "drift",
    "same answer",
    "plain English",
    "KL",
    "minutes",
    "GB",
)


def section(name: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"### {name}", "", f"    python recipes/wins/{name}.py --seed N", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [row(run) for run in runs]
    lines += ["", "What the reports say:", ""]
    for run in runs:
        for stage in run["stages"]:
            lines.append(f"- seed {run['seed']}, {stage['algorithm']}: {said(stage['verdict'])}")
        if run["others"]:
            lines.append(f"- seed {run['seed']}, from the pretrained to the final model: {of_both_stages(run)}")
    for run in runs:
        lines += of_scores(run)
    one = runs[0]
    for title, answers in (("Held-out prompts", one["samples"]), ("Other prompts", one["other_samples"])):
        lines += ["", f"{title}, seed {one['seed']}:", "", "| prompt | before | after |", "|---|---|---|"]
        lines += [f"| {cell(s['prompt'])} | {cell(s['before'])} | {cell(s['after'])} |" for s in answers]
    return [*lines, ""]


def row(run: Mapping[str, Any]) -> str:
    sides = sides_of(run)
    measure = measure_of(*sides)
    before, after = (side.get("greedy", side)[measure] for side in sides)
    last = run["stages"][-1]
    texts = [stage["text_loss"] for stage in run["stages"] if stage["text_loss"]["baseline"]]
    first_text, last_text = texts[0]["baseline"] if texts else None, last["text_loss"]["trained"]
    memory = max(stage["peak_memory_gb"] for stage in run["stages"])
    cells = [
        str(run["seed"]),
        shown(run["start"] or before, measure),
        shown(before, measure) if run["start"] else "",
        shown(after, measure),
        "; ".join(checks(run)),
        span_text(run["others"]["drift"]) if run["others"] else "",
        " → ".join(f"{run['others'][side]['same']['mean']:.0%}" for side in ("baseline", "trained"))
        if run["others"]
        else "",
        f"{first_text['mean']:.2f} → {last_text['mean']:.2f}" if first_text and last_text else "",
        "" if last["kl"] is None else f"{last['kl']:.3f}",
        f"{run['seconds'] / 60:.1f}",
        f"{memory:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def sides_of(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The held-out measurement before and after the last stage."""
    return [run["stages"][-1]["evaluation"][side] for side in ("baseline", "trained")]


def checks(run: Mapping[str, Any]) -> list[str]:
    """Each independent check before and after the last stage, with its name if there are several."""
    found = run["stages"][-1]["evaluation"].get("check", {})
    ends = [side[end] for both in found.values() for side in both.values() for end in ("low", "high")]
    measure = "accuracy" if all(0 <= end <= 1 for end in ends) else "score"
    moved = {
        label: " → ".join(shown(both[side], measure) for side in ("baseline", "trained"))
        for label, both in found.items()
    }
    return list(moved.values()) if len(moved) == 1 else [f"{label} {text}" for label, text in moved.items()]


def shown(found: Mapping[str, float], measure: str) -> str:
    """A measurement as text: an accuracy in percent, a score unchanged."""
    if measure == "accuracy":
        return share(found)
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def share(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.0%} [{found['low']:.0%}, {found['high']:.0%}]"


def cell(text: str) -> str:
    """A text as a table cell: on one line, without the marks of a chat template around the user's last turn."""
    said = text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0] if "<|im_start|>user\n" in text else text
    said = " ".join(said.split()).replace("|", "\\|")
    return said if len(said) <= 200 else said[:199] + "…"


def main(arguments: Sequence[str]) -> int:
    known = sorted(path.stem for path in RECIPES.glob("[a-z]*.py"))
    recipes, seeds = asked_for(arguments, __doc__, known)
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in recipes:
        for seed in seeds:
            if len(seeds) > 1:  # each run has its own process, so that the peak of memory is its own
                subprocess.run([sys.executable, "-m", "benchmarks.wins", name, "--seeds", str(seed)], check=True)
                results = json.loads(RESULT.read_text(encoding="utf-8"))
                continue
            folder = RUNS / f"{name}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            found = measure(name, seed, folder)
            results[name] = {"origin": origin(), "runs": with_run(results.get(name, {"runs": []})["runs"], found)}
            RESULT.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(row(found), flush=True)
            print(found["stages"][-1]["verdict"]["sentence"], flush=True)
    write_page(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
