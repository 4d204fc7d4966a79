"""Secrets in free-form settings: none reaches a file or a message, wherever it is."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from posttrain.config import DataConfig, ModelConfig, RewardConfig, RunConfig, TrainConfig, saved_tree
from posttrain.config.text import redact
from posttrain.train.same_rewards import facts_of

CANARY = "hunter2-canary-7ac1"
SECRETS: list[object] = [
    {"password": CANARY},
    {"db_password": CANARY},
    {"apiKey": CANARY},
    {"client-secret": CANARY},
    {"credentials": {"user": "me", "pw": CANARY}},
    {"credentials": ["me", CANARY]},
    {"access_key": CANARY},
    {"name": "X-Api-Key", "value": CANARY},
    {"key": "Authorization", "content": f"Bearer {CANARY}"},
    ["--password", CANARY],
    ["api_key", CANARY],
    ("secret", CANARY),
    f"postgres://user:{CANARY}@host/db",
    f"postgresql+psycopg2://user:{CANARY}@10.0.0.1:5432/db?sslmode=require",
    f"postgres://user:p@ss/{CANARY}@host/db",
    f"redis://:{CANARY}@host:6379/0",
    f"mongodb+srv://user:{CANARY}@cluster.example.com",
    f"amqp://user:{CANARY}@[::1]:5672",
    f"https://user:{CANARY}@host/v1",
    f"https://{CANARY}-and-more@github.com/a/b",
    f"host=localhost password={CANARY} dbname=x",
    f"Server=db;User=me;Password={CANARY};",
    f"https://host/v1?api_key={CANARY}&n=3",
    f"run --db-password={CANARY} --fast",
    f"Bearer {CANARY}",
    f"Authorization: Bearer {CANARY}",
    {"password": CANARY.encode()},
    {"headers": {"Authorization": f"Basic {CANARY}"}},
]
"""Settings that contain a secret, in the forms in which people write them."""
NESTED = st.recursive(
    st.sampled_from(SECRETS),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.tuples(inner, st.just("text"))
        | st.dictionaries(st.sampled_from(["servers", "options", "a b", "x-1"]), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@given(NESTED)
def test_no_secret_is_shown_however_deep_it_stands(settings):
    assert CANARY not in json.dumps(redact(settings), default=str)
    assert CANARY not in json.dumps(redact({"settings": settings}), default=str)


def test_what_only_resembles_a_secret_is_kept():
    for harmless in (
        {"stop_token": "</answer>", "max_tokens": 512, "token": "</s>", "key": "answer", "name": "math", "passes": 3},
        {"url": "http://localhost:8000/v1", "endpoint": "https://host:8000/users/me@example.com/a"},
        [
            "--answer",
            "password is a word",
            "a = b",
            "key=value",
            "the secret: keep going",
            "x@y.z",
            "mail me@example.com",
        ],
        {
            "pattern": r"(?:a|b)=\\d+",
            "prompt": "Say the password.",
            "weights": [0.1, 0.2],
            "password": None,
            "on": True,
        },
    ):
        assert redact(harmless) == harmless


def test_no_secret_of_a_reward_is_saved_or_said():
    settings = {f"s{number}": secret for number, secret in enumerate(SECRETS) if not isinstance(secret, tuple)}
    settings = {k: v for k, v in settings.items() if CANARY.encode() not in (v.values() if isinstance(v, dict) else ())}
    config = RunConfig(
        model=ModelConfig(path="tiny:sort"),
        algorithm={"name": "grpo"},
        data=DataConfig(train="task:sort"),
        train=TrainConfig(steps=1),
        rewards=[RewardConfig(name="exact_match"), RewardConfig(function="my.f", label="mine", settings=settings)],
    )
    assert CANARY not in json.dumps(saved_tree(config))
    assert CANARY not in json.dumps(facts_of(config))
