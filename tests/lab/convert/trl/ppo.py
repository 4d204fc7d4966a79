"""PPO as TRL had it from 0.12 on."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import PPOConfig, PPOTrainer

training_args = PPOConfig(
    output_dir="ppo-tldr",
    learning_rate=3e-6,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=4,
    total_episodes=30_000,
    num_mini_batches=2,
    missing_eos_penalty=1.0,
    stop_token="eos",
    response_length=53,
    sft_model_path="cleanrl/sft-tldr",
    reward_model_path="cleanrl/rm-tldr",
    num_sample_generations=10,
)
policy = AutoModelForCausalLM.from_pretrained(training_args.sft_model_path)
reward_model = AutoModelForSequenceClassification.from_pretrained("cleanrl/rm-tldr", num_labels=1)
value_model = AutoModelForSequenceClassification.from_pretrained("cleanrl/rm-tldr", num_labels=1)
trainer = PPOTrainer(
    args=training_args,
    processing_class=AutoTokenizer.from_pretrained("cleanrl/sft-tldr"),
    model=policy,
    ref_model=None,
    reward_model=reward_model,
    value_model=value_model,
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
)
trainer.train()
