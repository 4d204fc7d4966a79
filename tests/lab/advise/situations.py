"""Situations, the recommendation in each, and the rule that must be among the reasons: the table of docs/advise.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Situation(NamedTuple):
    says: str
    facts: dict[str, Any]
    best: str | None
    rule: str | None
    """The rule that must be a reason for `best`. If `best` is None, the rule says what has to be done first."""
    among: tuple[str, ...] = ()
    """Other algorithms that must be recommended, too."""
    ruled_out: tuple[str, ...] = ()
    """Algorithms that must not be recommended."""


BIG = {"size": "7b", "gpus": 8, "gpu_memory": 80}
ONE_GPU = {"size": "7b", "gpus": 1, "gpu_memory": 80}

SITUATIONS = [
    # The rows of published guides
    Situation("verifiable rewards", {"data": "verifier"}, "grpo", "verifier-grpo", ruled_out=("dpo", "kto")),
    Situation("the same for reasoning", {"data": "verifier", "goal": "reasoning"}, "grpo", "reasoning-needs-rewards"),
    Situation("a mixture of experts", {"data": "verifier", "moe": True}, "gspo", "moe-gspo"),
    Situation("long runs that break down", {"data": "verifier", "trouble": "unstable"}, "gspo", "unstable-gspo"),
    Situation("highest quality, compute", {"data": "verifier", "priority": "quality", **BIG}, "ppo", "quality-ppo"),
    Situation(
        "balance of speed and stability",
        {"data": "verifier", "priority": "speed,stability"},
        "reinforce_plus_plus",
        "speed-and-stability",
    ),
    Situation("only pairs", {"data": "pairs"}, "dpo", "pairs-dpo", among=("simpo",), ruled_out=("grpo", "ppo")),
    Situation("only thumbs", {"data": "thumbs"}, "kto", "thumbs-kto", ruled_out=("dpo", "simpo", "grpo")),
    Situation(
        "pairs, least memory, no reference",
        {"data": "pairs", "priority": "memory"},
        "simpo",
        "memory-reference-free",
        among=("orpo",),
    ),
    Situation(
        "rollout-bound, large model",
        {"data": "verifier", "rollout_bound": True, "size": "32b"},
        "grpo",
        "rollout-bound-asynchronous",
    ),
    Situation("rewards for single tokens", {"data": "verifier", "dense_rewards": True}, "ppo", "dense-rewards-ppo"),
    Situation(
        "top quality without PPO's memory",
        {"data": "verifier", "priority": "quality,memory"},
        "gspo",
        "quality-without-a-critic",
        ruled_out=("ppo",),
    ),
    Situation(
        "top quality on GPUs without room for a critic",
        {"data": "verifier", "priority": "quality", **ONE_GPU},
        "gspo",
        "quality-without-a-critic",
    ),
    Situation(
        "pairs, and sampling possible",
        {"data": "pairs", "online": True},
        "online_dpo",
        "pairs-and-sampling",
        among=("dpo",),
    ),
    Situation(
        "heterogeneous prompts",
        {"data": "verifier", "heterogeneous": True},
        "reinforce_plus_plus",
        "heterogeneous-prompts",
        among=("reinforce_plus_plus_baseline",),
    ),
    Situation("noisy rewards", {"data": "verifier", "reward": "noisy"}, "reinforce_plus_plus", "noisy-reward"),
    Situation("pairs, no SFT stage", {"data": "pairs", "sft_done": False}, "orpo", "no-sft-stage", among=("kto",)),
    Situation("thumbs, no SFT stage", {"data": "thumbs", "sft_done": False}, "kto", "no-sft-stage"),
    Situation("style, tone, persona", {"data": "pairs", "goal": "style"}, "dpo", "style-dpo"),
    Situation(
        "reasoning from pairs", {"data": "pairs", "goal": "reasoning"}, "rpo", "reasoning-not-dpo", ruled_out=("dpo",)
    ),
    Situation(
        "reasoning, pairs and a verifier",
        {"data": "verifier,pairs", "goal": "reasoning"},
        "grpo",
        "reasoning-needs-rewards",
        ruled_out=("dpo", "simpo", "online_dpo"),
    ),
    Situation("only demonstrations", {"data": "demonstrations"}, "sft", "demonstrations-sft", ruled_out=("grpo",)),
    Situation(
        "never right, demonstrations",
        {"data": "verifier,demonstrations", "base_score": 0},
        "sft",
        "sft-where-it-solves-nothing",
        ruled_out=("grpo",),
    ),
    Situation(
        "sometimes right, demonstrations",
        {"data": "verifier,demonstrations", "base_score": 0.3},
        "grpo",
        "verifier-grpo",
        ruled_out=("sft",),
    ),
    Situation("a format, demonstrations", {"data": "demonstrations", "goal": "format"}, "sft", "sft-for-the-format"),
    # What the data, the reward and the machine decide
    Situation("nothing at all", {}, None, "something-to-learn-from"),
    Situation("prompts alone", {"data": "nothing"}, None, "something-to-learn-from"),
    Situation("prompts and a judge", {"data": "nothing", "reward": "judge"}, "online_dpo", "judged-answers"),
    Situation("prompts and a reward model", {"data": "nothing", "reward": "model"}, "ppo", "learned-reward"),
    Situation("prompts and a better model", {"data": "nothing", "teacher": True}, "distillation", "teacher"),
    Situation("a verifier, no sampling", {"data": "verifier", "online": False}, "sft", "verifier-on-stored-answers"),
    Situation("ratings, no sampling", {"data": "ratings"}, "kto", "ratings-offline"),
    Situation("ratings and sampling", {"data": "ratings", "online": True}, "ppo", "ratings-online"),
    Situation("labelled steps", {"data": "steps"}, "ppo", "steps-online"),
    Situation("thumbs and pairs", {"data": "thumbs,pairs"}, "dpo", "pairs-dpo", among=("kto",)),
    Situation("thumbs and a verifier", {"data": "thumbs,verifier"}, "grpo", "verifier-grpo", ruled_out=("kto",)),
    Situation("least memory, a verifier", {"data": "verifier", "priority": "memory"}, "grpo", "memory-online"),
    Situation("stability first", {"data": "verifier", "priority": "stability"}, "gspo", "stability"),
    Situation("speed first", {"data": "verifier", "priority": "speed"}, "grpo", "speed", ruled_out=("ppo",)),
    Situation("one answer per prompt", {"data": "verifier", "one_answer": True}, "reinforce_plus_plus", "one-answer"),
    Situation("answers of 16,000 tokens", {"data": "verifier", "answer_length": 16000}, "dapo", "long-answers"),
    Situation(
        "rarely right",
        {"data": "verifier", "base_score": 0.02, "base_pass_at_k": 0.3},
        "dapo",
        "few-groups-with-signal",
    ),
    Situation("several rewards", {"data": "verifier", "several_rewards": True}, "gdpo", "several-rewards"),
    Situation("eight attempts count", {"data": "verifier", "attempts": 8}, "pass_at_k", "many-attempts"),
    Situation(
        "chat, quality, pairs and sampling",
        {"data": "pairs", "online": True, "goal": "chat", "priority": "quality"},
        "ppo",
        "chat-quality",
    ),
    # Several turns
    Situation("tools to call", {"turns": "tools", "data": "verifier"}, "grpo", "verifier-grpo", ruled_out=("sft",)),
    Situation("an environment that scores", {"turns": "environment"}, "grpo", "verifier-grpo"),
    Situation(
        "rewards for single turns",
        {"turns": "environment", "dense_rewards": True},
        "grpo",
        "rewards-of-turns",
        among=("ppo",),
        ruled_out=("gspo",),
    ),
    Situation("turns, demonstrations alone", {"turns": "tools", "data": "demonstrations"}, "sft", "demonstrations-sft"),
    # What went wrong before
    Situation("entropy collapsed", {"data": "verifier", "trouble": "entropy"}, "dapo", "entropy-collapse"),
    Situation("answers grew longer", {"data": "verifier", "trouble": "length"}, "dr_grpo", "answers-grow-longer"),
    Situation("answers grew longer with DPO", {"data": "pairs", "trouble": "length"}, "simpo", "pairs-grow-longer"),
    Situation("likelihood fell with DPO", {"data": "pairs", "trouble": "likelihood"}, "rpo", "likelihood-falls"),
    Situation("pairs learnt by heart", {"data": "pairs", "trouble": "overfitting"}, "ipo", "pairs-learnt-by-heart"),
    Situation("wrong preferences", {"data": "pairs", "noisy_labels": True}, "cdpo", "noisy-preferences"),
    # Training a scorer
    Situation("a reward model of pairs", {"data": "pairs", "goal": "scorer"}, "reward_model", "scorer-from-pairs"),
    Situation(
        "a reward model of ratings", {"data": "ratings", "goal": "scorer"}, "reward_regression", "scorer-from-ratings"
    ),
    Situation(
        "a process reward model", {"data": "steps", "goal": "scorer"}, "process_reward_model", "scorer-from-steps"
    ),
]


def table() -> str:
    """Return the table for docs/advise.md. `python -m tests.lab.advise.situations docs/advise.md` writes it there."""
    rows = [
        f"| {s.says} | {', '.join(f'{k} = {v}' for k, v in s.facts.items()) or '(nothing)'} "
        f"| {f'`{s.best}`' if s.best else 'none yet'} | `{s.rule}` |"
        for s in SITUATIONS
    ]
    return "\n".join(["| situation | facts | first | rule |", "| --- | --- | --- | --- |", *rows])


if __name__ == "__main__":
    import sys
    from pathlib import Path

    from tests.lab.advise.written import written

    page = Path(sys.argv[1])
    page.write_text(written(page.read_text(encoding="utf-8"), {"situations": table()}), encoding="utf-8")
