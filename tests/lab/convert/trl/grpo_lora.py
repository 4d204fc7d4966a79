from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")


def brevity(completions, **kwargs):
    return [-len(c) for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir="out",
        learning_rate=5e-6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        num_generations=8,
        max_completion_length=1024,
        max_prompt_length=512,
        beta=0.01,
        bf16=True,
        logging_steps=1,
        warmup_ratio=0.1,
        use_vllm=True,
        vllm_mode="colocate",
        max_steps=500,
        report_to="wandb",
    )
    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=[accuracy_reward, brevity],
        args=args,
        train_dataset=dataset,
        peft_config=LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM"),
    )
    trainer.train()
