"""What each option of `policy_gradient` computes, in one line, and who uses it.

R reward, A advantage, sg stops the gradient; d = logprobs - old_logprobs of a token, rho = exp(d), s = exp(mean_t d),
q = exp(sum_t d), u whichever of these is the ratio. Words with an underscore are settings.
"""

from __future__ import annotations

ABOUT: dict[str, dict[str, str]] = {
    "baseline": {
        "none": "nothing is subtracted: A is the return, R discounted by gamma per token (REINFORCE++)",
        "batch_mean": "mean reward of all completions of the rollout batch (REINFORCE)",
        "moving_average": "moving average of the mean rewards of earlier batches; 0 in the first "
        "(REINFORCE with baseline = moving_average)",
        "greedy": "reward of the greedy completion of the prompt (ReMax)",
        "group_mean": "mean reward of the G completions of the prompt, the own included (GRPO and most others)",
        "leave_one_out": "mean reward of the other G - 1 completions of the prompt (RLOO)",
        "runner_up": "the second-best reward of the prompt, for its best completion alone: every other has A = 0, and "
        "at a tie all have (verl's pass@k)",
        "length_weighted": "sum of length * R over sum of lengths, of the G completions of the prompt (OPO)",
        "optimal_token": "of each token sum W G / sum W over the G completions of the prompt, G the return from it on "
        "and W the sum of 1 - 2 p + sum_v p_v^2 up to it (verl's optimal token baseline, arXiv:2602.07078)",
        "constant": "the setting constant, the same for every completion (TOPR)",
        "pass_at_k": "no difference of rewards: A is the mean normalised reward of the subsets of k answers with this "
        "one in them, 1 where any of the k is correct (Pass@k training)",
        "teacher": "no rewards: A = coef * max(log(teacher / old policy), floor) of each token (distillation)",
        "critic": "the value of the critic, by generalised advantage estimation with gamma and gae_lambda (PPO)",
    },
    "normalisation": {
        "none": "A as it is (Dr. GRPO, RLOO, REINFORCE)",
        "group_std": "A / (std(R) + std_epsilon), std over the G completions of the prompt (GRPO)",
        "mean_reward": "A / (mean(R) + std_epsilon), mean over the G completions of the prompt (MaxRL)",
        "batch_std": "A / (std(R) + std_epsilon), std over all completions of the rollout batch (Lite PPO)",
        "nonzero_share": "A / share of the completions of the rollout batch whose reward is not 0 (GPG)",
        "per_reward": "z_k = (R_k - mean(R_k)) / (std(R_k) + std_epsilon) of each reward function in its group; "
        "A = sum_k w_k z_k / (its std over the batch + std_epsilon) (GDPO)",
        "whiten_tokens": "(A - mean(A)) / sqrt(var(A) + 1e-8) over the trained tokens of the rollout batch "
        "(PPO, REINFORCE++)",
    },
    "ratio": {
        "none": "no ratio: the loss reads logprobs, or the log-ratio of the completion (REINFORCE, RLOO, Kimi)",
        "token": "u = rho = exp(logprobs - old_logprobs), one per token (PPO, GRPO)",
        "sequence": "u = s = exp(mean_t d), the geometric mean of the token ratios, one per completion (GSPO)",
        "sequence_product": "u = q = exp(sum_t d), the likelihood ratio of the whole completion (VESPO, TOPR)",
        "sequence_token": "u = sg[s] * exp(d - sg[d]): the value is s, the gradient that of the token (GSPO-token)",
    },
    "trust_region": {
        "none": "L = -u A; -A * logprobs without a ratio (OPO; REINFORCE, RLOO, GPG)",
        "clip": "L = -min(u A, clip(u, 1 - clip_low, 1 + clip_high) A), where A < 0 at most dual_clip * |A| "
        "(PPO, GRPO, GSPO)",
        "weight_clip": "L = -sg[min(u, max_ratio)] A * logprobs, or u within 1 - clip_low and 1 + clip_high (CISPO)",
        "soft_gate": "L = -A * 4 / tau * sigmoid(tau (u - 1)), tau_pos where A > 0, else tau_neg (SAPO)",
        "kernel": "L = -sg[u^k exp(lambda (1 - u))] A * logprobs, k and lambda by the sign of A (VESPO)",
        "divergence_mask": "L = -sg[min(rho, max_ratio)] A * logprobs, 0 where the probability of the token has moved "
        "the way of A by more than divergence_low or divergence_high (DPPO)",
        "clip_cov": "clip, and 0 for a share of the tokens, drawn from those that the clip has not stopped with "
        "cov_low < (logprobs - mean)(A - mean) < cov_high (Clip-Cov)",
        "kl_cov": "L = -rho A, plus penalty * |d| for the share of the tokens of largest (logprobs - mean)(A - mean) "
        "(KL-Cov)",
        "log_clip": "L = -A exp(mean_t z), z = min(d, clip_high) where A > 0, else max(d, -clip_low) (GMPO)",
        "truncated_negatives": "L = -w A * logprobs, w = 1 where A >= 0, sg[min(q, 1)] where A < 0 (TOPR)",
        "squared_log_ratio": "L = -A * sum_t logprobs + tau / 2 * (sum_t d)^2 per completion, under sequence_sum "
        "(Kimi k1.5)",
        "token_squared_log_ratio": "L = -A * logprobs + tau / 2 * d^2 of each token (DRO)",
        "regression": "L = (A - tau * sum_t d)^2 per completion (Kimi K2)",
    },
    "kl": {
        "none": "no KL to the reference (CISPO, GMPO, LUSPO)",
        "reward": "the reward of each token minus kl_coef * KL, k1 = log(old / reference) (PPO, REINFORCE, ReMax)",
        "reward_sequence": "R - kl_coef * sum_t log(old / reference), before the baseline (RLOO)",
        "loss": "the loss of each token plus kl_coef * KL(policy, reference), by kl_estimator (GRPO)",
    },
    "aggregation": {
        "token_mean": "sum over the tokens of the step / their number (DAPO, PPO)",
        "sequence_mean": "mean over the tokens of a completion, then over the completions of the step (GRPO)",
        "sequence_sum": "sum over the tokens of a completion, then mean over the completions (RLOO, REINFORCE, LUSPO)",
        "fixed_length_mean": "sum over the tokens / max_completion_length, then mean over the completions (Dr. GRPO)",
        "prompt_mean": "mean over all tokens of the completions of a prompt, then over prompts (no named algorithm)",
    },
    "filter": {
        "none": "every completion stays in the loss (most)",
        "signal": "prompts whose rewards are all equal are replaced by others until the step is full (DAPO)",
        "off_policy_negatives": "no policy term for a completion with A < 0 and mean_t log(sampler / policy) > "
        "max_negative_divergence (DeepSeek-V3.2)",
    },
    "shaping": {
        "none": "R as it is (most)",
        "soft_overlong": "R + clip((max_completion_length - overlong_buffer - length) / overlong_buffer, -1, 0) (DAPO)",
        "length": "R + length_coef * lambda, lambda = 1/2 - (length - shortest) / (longest - shortest) of the prompt, "
        "at most 0 for a wrong answer (Kimi k1.5)",
        "budget": "R - budget_penalty where the completion has more than token_budget tokens (Kimi K2)",
        "score": "R - missing_eos_penalty where the completion was cut before its EOS, then held within +-score_clip "
        "(PPO)",
    },
}
"""Choice -> option -> what it computes."""
