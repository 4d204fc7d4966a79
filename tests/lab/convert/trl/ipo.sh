# Zephyr's data with IPO.
trl dpo --model_name_or_path HuggingFaceH4/mistral-7b-sft-beta \
    --dataset_name HuggingFaceH4/ultrafeedback_binarized --dataset_train_split train_prefs \
    --loss_type ipo --beta 0.01 --max_steps 1000 --per_device_train_batch_size 16 --precompute_ref_log_probs \
    --output_dir zephyr-ipo
