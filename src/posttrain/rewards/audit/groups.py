"""Would the completions of a model teach anything under this reward?"""

from __future__ import annotations

from posttrain.rewards.audit.finding import Measured, mean, share
from posttrain.rewards.audit.subject import Case, Subject


def group_signal(subject: Subject) -> Measured:
    """Share of the groups of completions in which every score is the same, so that their advantages are 0."""
    if not subject.completions:
        return Measured(text="no completions of a model were given")
    groups = [
        [answer.value for answer in subject.score([Case(row=row, text=text) for text in texts])]
        for row, texts in enumerate(subject.completions[: len(subject.prompts)])
    ]
    scored = [[value for value in group if value is not None] for group in groups]
    same = sum(len(set(group)) < 2 for group in scored)
    average = mean([value for group in scored for value in group])
    return Measured(
        value=same / len(scored),
        text=f"{share(same, len(scored))} groups have equal scores; the mean score is {average:.3g}",
        examples=("Nothing is learned from such a group. Choose easier or harder prompts, or larger groups.",),
    )
