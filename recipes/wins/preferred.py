"""Human preferences without RL's gradient: online DPO on the model's own answers. Minutes on a CPU, and no win yet.

    python recipes/wins/preferred.py --seed 0 --output runs/preferred-0      (from the repository's root)

DPO on the pairs that people judged hardly moves what a small model says, because it would write neither answer of a
pair (docs/wins.md). So the pairs are its own: minimind2-small answers each question eight times, a reward model that
learned from people's pairs finds the best and the worst, and DPO learns from these two. Data, reward model, rewards and
check are those of learned_reward.py; the algorithm takes the place of RLOO, and its beta that of the KL. The learned
reward and the check rise, and about half of the questions end with the same refusal: docs/wins.md has the seeds, and
what was tried.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import posttrain as pt

sys.path.insert(0, str(Path(__file__).parents[2]))  # the root, however this file is started
from recipes.wins import learned_reward


def config(data: Path, reward_model: Path) -> dict[str, Any]:
    """Eight steps at a beta of 0.3. With more of them, or a smaller beta, more questions get the same refusal."""
    same = learned_reward.config(data, reward_model)
    return {
        **same,
        "algorithm": {"name": "online_dpo", "beta": 0.3, "pairs": "best_worst"},
        "train": {**same["train"], "steps": 8},
    }


def run(seed: int, output: Path) -> Any:
    """The data and the reward model are shared with learned_reward.py: whichever runs first makes them."""
    data = output.parent / "learned_reward-data"
    return pt.train(config(data, learned_reward.prepared(data)), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/preferred"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
