train=~/data/math/train.parquet
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    data.train_files=$train \
    data.train_batch_size=512 \
    actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.clip_ratio=0.3 \
    actor_rollout_ref.actor.use_kl_loss=False \
    critic.optim.lr=1e-5 \
    critic.model.path=deepseek-ai/deepseek-llm-7b-chat \
    critic.ppo_micro_batch_size_per_gpu=16 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.kl_coef=0.002 \
    algorithm.lam=0.95 \
    trainer.critic_warmup=5 \
    trainer.total_training_steps=200
