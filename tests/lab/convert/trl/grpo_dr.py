"""GRPO with the divisor of Dr. GRPO and two updates per batch; starts when it is imported."""

from datasets import load_dataset
from my_rewards import right_answer
from trl import GRPOConfig, GRPOTrainer

BATCH = 16
train = load_dataset("json", data_files="questions.jsonl", split="train[:2000]")
train = train.map(lambda row: {"prompt": row["question"]})
arguments = dict(  # noqa: C408
    output_dir="runs/dr",
    per_device_train_batch_size=BATCH,
    steps_per_generation=4,
    gradient_accumulation_steps=2,
    num_iterations=2,
    max_steps=400,
)
config = GRPOConfig(
    **arguments,
    loss_type="dr_grpo",
    scale_rewards=False,
    epsilon=0.2,
    epsilon_high=0.28,
    beta=0.0,
    num_generations=16,
    max_completion_length=2048,
    temperature=0.9,
    reward_weights=[1.0, 0.2],
    mask_truncated_completions=True,
    save_steps=80,
    seed=7,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen3-1.7B",
    args=config,
    reward_funcs=[right_answer, "Skywork/Skywork-Reward-V2-Qwen3-0.6B"],
    train_dataset=train,
    callbacks=[print],
)
trainer.train()
