python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=reinforce_plus_plus \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=0.01 \
    data.train_files="['a.parquet','b.parquet']" \
    data.train_batch_size=256 \
    actor_rollout_ref.model.path=Qwen/Qwen3-4B \
    actor_rollout_ref.rollout.n=1 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.multi_turn.enable=False \
    custom_reward_function.path=my_reward.py \
    custom_reward_function.name=score \
    +trainer.total_training_steps=50
