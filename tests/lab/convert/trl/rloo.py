import argparse

from datasets import load_dataset
from trl import RLOOConfig, RLOOTrainer

options = argparse.ArgumentParser()
options.add_argument("--learning_rate", type=float)
options = options.parse_args()


def longest(prompts, completions, **kwargs):
    return [float(len(completion)) for completion in completions]


config = RLOOConfig(
    output_dir="rloo",
    learning_rate=options.learning_rate,
    num_generations=4,
    per_device_train_batch_size=32,
    max_steps=100,
    reward_clip_range=(-5.0, 5.0),
)
RLOOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=longest,
    args=config,
    train_dataset=load_dataset("trl-lib/ultrafeedback-prompt", split="train"),
).train()
