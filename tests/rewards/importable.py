"""A reward of an importable module. A worker imports the module, so it imports little."""

import os


def process_id(completion: str) -> float:
    return float(os.getpid())
