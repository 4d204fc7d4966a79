from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

model_id = "Qwen/Qwen2.5-0.5B-Instruct"
config = KTOConfig(
    output_dir="kto",
    beta=0.1,
    desirable_weight=1.33,
    undesirable_weight=1.0,
    learning_rate=5e-7,
    per_device_train_batch_size=16,
    max_steps=200,
    max_prompt_length=512,
    remove_unused_columns=False,
)
trainer = KTOTrainer(
    model=model_id, ref_model=model_id, args=config, train_dataset=load_dataset("trl-lib/kto-mix-14k", split="train")
)
trainer.train()
