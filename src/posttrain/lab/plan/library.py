"""Numbers of this library that decide memory, beside the modules that use them: those import torch, this one must not.

A test compares each with its original.
"""

KEPT_LOGIT_BYTES = 2**28
"""functional/linear_logprobs.py: logits that stay for the backward pass."""
TILE_NUMBERS = {"cpu": 2**20, "cuda": 2**26}
"""The same: logits in a tile."""
TILE_COLUMNS = 1024
"""The same: the fewest columns of a tile."""
SHORT_KEYS = 512
"""cpu/short_attention.py: up to so many keys attention keeps its probabilities, where it is short."""
SLAB_NUMBERS = 2**18
"""The same: scores of the rows that it computes together."""
SLOT_COLUMNS = 32
"""engines/slots.py: columns of the cache come in multiples of this."""
GROUP_COLUMNS = 16
"""cpu/group_cache.py: the same of a plain decoder."""
SLOT_GROWTH = 1.5
"""engines/slot_storage.py and cpu/group_cache.py: what is full gets so many times the columns."""
COPIED_WEIGHTS = 2**21
"""cpu/kernels.py: weights up to which layers are joined, or copied for a kernel."""
LEAST_SAVING = 16
"""models/shared_prefixes.py: tokens that sharing a beginning has to save."""
SAMPLING_BLOCK = 256
"""engines/sampling.py: tokens of a block of the vocabulary."""
REWARD_TOKENS = 8192
"""rewards/model.py: tokens that a reward model scores together."""
PROBE_ROWS = 4
"""engines/delivery.py: prompts with which every delivery of weights is proved."""
PROBE_TOKENS, PROBE_SCORED = 32, 4
"""The same: tokens of each of them, and how many of those are scored."""
SMALL = 1_000_000
"""models/compute.py: parameters from which a run on a CPU measures its ways of computing, and may take bfloat16."""
