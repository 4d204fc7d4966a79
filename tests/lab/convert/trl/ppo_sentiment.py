"""PPO as TRL had it until 0.11: a loop of one's own around `step`."""

from datasets import load_dataset
from transformers import AutoTokenizer, pipeline
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer, create_reference_model

config = PPOConfig(
    model_name="lvwerra/gpt2-imdb",
    learning_rate=1.41e-5,
    batch_size=64,
    mini_batch_size=16,
    ppo_epochs=3,
    init_kl_coef=0.1,
    target=6.0,
    steps=12_800,
    log_with="wandb",
)
model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
ref_model = create_reference_model(model)
tokenizer = AutoTokenizer.from_pretrained(config.model_name)
dataset = load_dataset("stanfordnlp/imdb", split="train")
trainer = PPOTrainer(config, model, ref_model, tokenizer, dataset=dataset)
sentiment = pipeline("sentiment-analysis", model="lvwerra/distilbert-imdb")
generation_kwargs = {"min_length": -1, "top_k": 0, "top_p": 1.0, "do_sample": True, "max_new_tokens": 24}
for batch in trainer.dataloader:
    answers = trainer.generate(batch["input_ids"], **generation_kwargs)
    rewards = [score["score"] for score in sentiment(tokenizer.batch_decode(answers))]
    trainer.step(batch["input_ids"], answers, rewards)
