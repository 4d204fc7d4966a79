from datasets import load_dataset
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", num_labels=1)
dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
halves = dataset.train_test_split(test_size=0.05)
trainer = RewardTrainer(
    model=model,
    args=RewardConfig(
        output_dir="rm",
        center_rewards_coefficient=0.01,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        bf16=True,
    ),
    train_dataset=halves["train"],
    eval_dataset=halves["test"],
)
trainer.train()
