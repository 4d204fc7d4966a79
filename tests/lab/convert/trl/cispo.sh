#!/usr/bin/env bash
MODEL=Qwen/Qwen3-0.6B
accelerate launch --num_processes 4 \
    examples/scripts/grpo.py \
    --model_name_or_path $MODEL \
    --dataset_name trl-lib/DeepMath-103K \
    --loss_type cispo \
    --epsilon_high 5.0 \
    --reward_funcs accuracy_reward \
    --num_generations 8 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --max_steps 300 \
    --learning_rate 1e-6 \
    --use_vllm \
    --vllm_mode server \
    --use_peft \
    --lora_r 32 \
    --lora_target_modules q_proj v_proj
