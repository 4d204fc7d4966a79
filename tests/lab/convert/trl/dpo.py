import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def main():
    model = AutoModelForCausalLM.from_pretrained("allenai/Llama-3.1-Tulu-3-8B-SFT", torch_dtype=torch.bfloat16)
    ref_model = AutoModelForCausalLM.from_pretrained("allenai/Llama-3.1-Tulu-3-8B-SFT")
    tokenizer = AutoTokenizer.from_pretrained("allenai/Llama-3.1-Tulu-3-8B-SFT")
    data = load_dataset("HuggingFaceH4/ultrafeedback_binarized")
    training_args = DPOConfig(
        output_dir="tulu-dpo",
        beta=0.05,
        learning_rate=5e-7,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=16,
        num_train_epochs=1,
        max_length=2048,
        warmup_ratio=0.1,
        lr_scheduler_type="linear",
        label_smoothing=0.1,
        gradient_checkpointing=True,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=100,
        optim="paged_adamw_8bit",
    )
    trainer = DPOTrainer(
        model,
        ref_model=ref_model,
        args=training_args,
        train_dataset=data["train_prefs"],
        eval_dataset=data["test_prefs"],
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
