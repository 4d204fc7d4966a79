"""Rewards that never return: for any completion, or in a process that is not a reward worker."""

import os
import time


def always(completion, answer):
    time.sleep(3600)


def dies_elsewhere(completion, answer):
    """Reward workers run with PYTHONHASHSEED=0."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os._exit(3)
    return float(completion.endswith(f"#### {answer}"))
