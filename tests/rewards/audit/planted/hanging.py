"""Rewards that do not come back: from any completion, or in a process that is no reward worker's."""

import os
import time


def always(completion, answer):
    time.sleep(3600)


def dies_elsewhere(completion, answer):
    """Reward workers run with PYTHONHASHSEED=0."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os._exit(3)
    return float(completion.endswith(f"#### {answer}"))
