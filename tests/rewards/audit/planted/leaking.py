"""Rewards that do more than score."""

import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rewards.audit.planted.honest import marked


def writes_a_file(completion, answer):
    Path(tempfile.gettempdir(), "posttrain-planted.log").write_text(completion, errors="replace")
    return marked(completion, answer)


def opens_a_socket(completion, answer):
    with socket.socket() as connection:
        connection.settimeout(0.1)
        connection.connect_ex(("127.0.0.1", 9))
    return marked(completion, answer)


def starts_a_process(completion, answer):
    subprocess.run(["true"], check=False)
    return marked(completion, answer)


def sets_the_environment(completion, answer):
    os.environ["PLANTED"] = str(len(completion))
    return marked(completion, answer)


def seeds_random(completion, answer):
    random.seed(0)
    return marked(completion, answer)


def changes_the_folder(completion, answer):
    os.chdir(tempfile.gettempdir() if os.getcwd() == "/" else "/")
    return marked(completion, answer)


def evaluates(completion, answer):
    """Runs the model's text as code."""
    score = marked(completion, answer)
    try:
        return float(score or eval(completion.rpartition("#### ")[2].strip() or "None") == float(answer))
    except (Exception, SystemExit):
        return score


def raises_the_limit(completion, answer):
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    return marked(completion, answer)
