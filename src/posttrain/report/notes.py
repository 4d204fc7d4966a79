"""Notes for the reader about the metrics of a run: what stands out, and what to change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from posttrain.report.alarms import alarms_of
from posttrain.report.likelihood_notes import displacement, memorising, overfitting
from posttrain.report.note import Note, fifths
from posttrain.report.side_by_side import staleness_note, waiting_note
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import compact, percent
from posttrain.report.verdict import verdict

FEW_TOKENS = 8
"""Minimum change of the mean length, in tokens, that is worth a note."""
LOSS_IS_SMALL = 0.05
MISMATCH_IS_LARGE = 0.05
"""Mean mismatch above which the note warns, in nats per token. bfloat16 against float32 gives about 0.01; different
weights or templates give far more."""


def observations(run: RunRecord) -> list[Note]:
    """Return the notes, most serious first."""
    finders = (
        _reward, _signal, _truncation, _unscored, _entropy, _mismatch, _clipping, _spikes, _length, _loss,
        displacement, memorising, overfitting, staleness_note, waiting_note,
    )  # fmt: skip
    notes = [note for finder in finders if (note := finder(run)) is not None]
    return sorted(notes, key=lambda note: ("warn", "info", "ok").index(note.level))


def _reward(run: RunRecord) -> Note | None:
    points = run.series("reward")
    if len(points) < 3:
        return None
    values = [value for _, value in points]
    if max(values) == min(values) == 0:
        return Note(
            "warn",
            f"Every answer in all {len(values)} steps got reward 0",
            "There was nothing to learn from. Read the samples: do the answers have the format that the reward "
            "expects? If they do, use easier prompts, a short supervised warm-up, or a reward with partial "
            "credit.",
        )
    if max(values) == min(values):
        text = f"It was {compact(values[0])} at every step: the reward does not distinguish good answers from bad ones."
        return Note("warn", "The reward never changed", text)
    first, last = fifths(points)
    course = f"{compact(first)} in the first fifth of the run, {compact(last)} in the last"
    noise = _noise(values)
    if abs(last - first) <= 2 * noise:
        groups = ["too few groups with signal"] if run.compares_groups else []
        causes = ", ".join([*groups, "a learning rate that is too small", "too few steps"])
        if verdict(run).change < 0:
            causes = ", ".join(["a learning rate that is too high (the held-out score fell)", *groups])
        text = f"{course}: within the noise of {compact(noise)} between steps. Causes, most likely first: {causes}."
        return Note("warn", "The reward is flat", text)
    return (
        Note("ok", "The reward rose", f"{course}.") if last > first else Note("warn", "The reward fell", f"{course}.")
    )


def _signal(run: RunRecord) -> Note | None:
    points = run.series("frac_reward_zero_std")
    if not points or not run.compares_groups:
        return None
    dead = statistics.fmean(value for _, value in points)
    first, last = fifths(points)
    if dead > 0.7 and last > 0.7:
        return Note(
            "warn",
            "Few groups had a signal",
            f"In {percent(dead)} of the groups all answers got the same reward; such a group changes no weight. "
            f"{_likely_reason(run)}More answers per prompt (sampling.group_size), a higher sampling.temperature or "
            "other prompts help.",
        )
    if last > first + 0.2 and last > 0.6:
        text = (
            f"Groups without signal grew from {percent(first)} to {percent(last)}: "
            "the later steps had less to learn from. Harder prompts would give more."
        )
        return Note("info", "The signal is running out", text)
    return None


def _likely_reason(run: RunRecord) -> str:
    """Say why most groups have equal rewards. Only the level of a reward from 0 to 1 tells; else the text is empty."""
    rewards = run.series("reward")
    ranges = (mapping(run.evaluation.get(side)).get("score_range") for side in ("baseline", "trained"))
    edges = [number(edge) for found in ranges if isinstance(found, list) for edge in found]
    seen = [*(value for _, value in rewards), *(edge for edge in edges if edge is not None)]
    if not rewards or min(seen) < 0 or max(seen) > 1 + 1e-6:
        return ""
    level, reason = fifths(rewards)[1], "its answers to a prompt are too similar"
    if level < 0.3:
        reason = "the prompts are too hard for this model"
    elif level > 0.8:
        reason = "most prompts are solved already"
    return f"At a mean reward of {compact(level)} the likely reason is that {reason}. "


def _truncation(run: RunRecord) -> Note | None:
    points = run.series("completions/clipped_ratio")
    if not points:
        return None
    first, last = fifths(points)
    if max(first, last) < 0.1:
        return None
    limit = run.setting("sampling.max_completion_length", "the limit of")
    return Note(
        "warn" if last > 0.2 else "info",
        "Answers were cut off",
        f"{percent(first)} reached the limit of {limit} tokens in the first fifth of the run, {percent(last)} in "
        "the last. A truncated answer usually lacks its result and is scored as wrong. Raise "
        "sampling.max_completion_length, or set train.mask_truncated.",
    )


def _unscored(run: RunRecord) -> Note | None:
    points = run.series("unscored_fraction")
    step, worst = max(points, key=lambda point: point[1], default=(0, 0.0))
    if worst == 0:
        return None
    share = statistics.fmean(value for _, value in points)
    return Note(
        "warn" if share > 0.02 else "info",
        "Some answers could not be scored",
        f"{percent(share)} on average, {percent(worst)} at step {step}. They were left out of the statistics and "
        "of the loss, and never counted as 0. The events below show the reward's errors.",
    )


def _entropy(run: RunRecord) -> Note | None:
    points = run.series("entropy")
    if len(points) < 5:
        return None
    first, last = fifths(points)
    course = f"From {compact(first)} to {compact(last)} nats per token"
    if last < 0.15 * first and not run.answers_are_given:
        groups = "groups lose their signal, " if run.compares_groups else ""
        return Note(
            "info",
            "The entropy collapsed",
            f"{course}. Answers to a prompt become similar, {groups}and pass@k for large k usually "
            "falls. A higher clip_high or a small entropy_coef keeps some variety.",
        )
    if last > 2 * first and last > 0.5:
        text = f"{course}: the model becomes less sure, often a sign that steps are too large."
        return Note("warn", "The entropy grew", text)
    return None


def mismatch(run: RunRecord) -> Sequence[tuple[float, float]]:
    """Return (step, mean log-probability difference of sampler and trainer). It covers the tokens that the step's own
    weights sampled; in runs that do not record those separately, all tokens."""
    return run.series("mismatch/fresh_mean") or run.series("sampling/sampling_logp_difference/mean")


def _mismatch(run: RunRecord) -> Note | None:
    points = mismatch(run)
    if not points:
        return None
    level, worst = statistics.fmean(value for _, value in points), max(value for _, value in points)
    measured = (
        f"Their log-probabilities of the same tokens differ by {compact(level)} nats on average, "
        f"{compact(worst)} in the worst step."
    )
    if any(alarm.kind == "mismatch" for alarm in alarms_of(run)):
        return Note("warn", "Sampler and trainer disagree", f"{measured} The alarm says why.")
    if level <= MISMATCH_IS_LARGE:
        return Note("ok", "Sampler and trainer agree", measured)
    advice = " The gradient assumes that they agree: look at precision, chat template and sampling settings."
    return Note("warn", "Sampler and trainer disagree", measured + advice)


def _clipping(run: RunRecord) -> Note | None:
    points = run.series("clip_ratio/region_mean")
    level = statistics.fmean(value for _, value in points) if points else 0.0
    if level <= 0.2:
        return None
    text = f"{percent(level)} of the tokens. Steps are too large: lower train.learning_rate or train.minibatches."
    return Note("warn", "Much was clipped", text)


def _spikes(run: RunRecord) -> Note | None:
    points = run.series("grad_norm")
    if len(points) < 10:
        return None
    typical = statistics.median(value for _, value in points)
    step, worst = max(points, key=lambda point: point[1])
    if not typical > 0 or worst < 10 * typical:
        return None
    limit = number(run.setting("train.max_grad_norm"), 0.0)
    clipped = f" It was clipped to {compact(limit)}." if 0 < limit < worst else ""
    text = f"{compact(worst)} at step {step}, against a median of {compact(typical)}.{clipped}"
    shown = " The rollouts of that step show its text." if run.rollout_steps else ""
    return Note("info", "The gradient had a spike", text + shown)


def _length(run: RunRecord) -> Note | None:
    points = run.series("completions/mean_length")
    if len(points) < 5:
        return None
    first, last = fifths(points)
    if not first > 0 or first / 1.5 <= last <= 1.5 * first or abs(last - first) < FEW_TOKENS:
        return None
    paid = "length" if last > first else "brevity"
    text = f"From {compact(first)} to {compact(last)} tokens on average. Does the reward pay for {paid}?"
    return Note("info", f"Answers became {'longer' if last > first else 'shorter'}", text)


def _loss(run: RunRecord) -> Note | None:
    losses, norms = run.series("loss"), run.series("grad_norm")
    largest = max((abs(value) for _, value in losses), default=math.inf)
    if largest > LOSS_IS_SMALL or not run.series("reward"):
        return None
    if largest == 0 and norms and max(value for _, value in norms) == 0:
        text = "The gradient is 0 as well: no group had a signal, and nothing was learned."
        return Note("warn", "The loss is exactly 0", text)
    return Note(
        "ok",
        "The loss is about 0",
        f"It never left ±{compact(largest)}, which is as expected: the advantages of a group sum to 0, so the "
        "loss of an on-policy step is about 0 even if the model learns. Its gradient is not. Read reward and "
        "held-out score instead.",
    )


def _noise(values: Sequence[float]) -> float:
    """Return the standard error of the difference between the means of the first and the last fifth."""
    size = max(1, len(values) // 5)
    if size == 1:
        return statistics.stdev(values)
    return math.sqrt((statistics.variance(values[:size]) + statistics.variance(values[-size:])) / size)
