"""Numbers that decide how much memory a run needs: used by the code that takes it and by the planner that predicts it.

They are in a separate module because their users import transformers, for which a plan should not have to wait.
"""


def holds_base(device: str) -> bool:
    """Return whether frozen weights are held in the precision of their products (models/policy.py, `hold_in`).

    This concerns the weights under adapters and those of reward models; references and teachers are held so everywhere.
    On a GPU, each product reads its weights from memory, and a cast reads and writes three times as much. On a CPU,
    runs mostly compute in float32, and the sampler's copy is made from the trainer's weights.
    """
    return device == "cuda"


SHORT_KEYS = 512
"""Maximum keys for short attention (cpu/segment_attention.py), while a row's scores fit into the processor's caches.
Beyond that, the fused kernel is faster."""
SLAB_NUMBERS = 2**18
"""Number of scores, 1 MB, that short attention computes together. With short rows one at a time, calls would be most of
the cost."""
SLOT_COLUMNS = 32
"""The number of columns in the cache of keys and values is a multiple of this (engines/slots.py)."""
GROUP_COLUMNS = 16
"""The same for a plain decoder (cpu/group_attention.py)."""
SLOT_GROWTH = 1.5
"""Factor by which the columns of full slots grow, so that copies are bounded by writes."""
COPIED_WEIGHTS = 2**21
"""Maximum weights of a layer that is copied, into panels or joined with others, at the start of decoding. Calling a
larger product costs little compared to reading its weights."""
LANES = 16
"""Numbers that compiled kernels process at a time: widths are multiples of it, and head widths of twice as much."""
SAMPLING_BLOCK = 256
"""Tokens in a block of the vocabulary, for the choice of a token (engines/sampling.py)."""
REWARD_TOKENS = 8192
"""Tokens that a reward model scores together (rewards/model.py)."""
PROBE_ROWS = 4
"""Number of prompts that prove each delivery of weights (engines/delivery.py)."""
PROBE_TOKENS = 32
PROBE_SCORED_TOKENS = 4
"""Tokens of each of these prompts, and how many of them are scored."""
PROCESS = 320 * 2**20
"""Bytes of an engine's process, or of a rank's on a CPU, besides those of its model: Python, and its share of the
libraries. Measured with a model of 130,000 parameters."""
PUBLICATIONS = 2
"""Number of publications of the weights in the memory that engines read."""
EIGHT_BIT_BLOCK = 256
"""Values of an 8-bit moment that share a scale of four bytes (torchao)."""
EIGHT_BIT_LEAST = 4096
"""Size of the smallest tensor whose moments torchao holds in 8 bits."""
EIGHT_BIT_TABLE = 256
"""Entries, of four bytes each, in the table that decodes the codes of one moment."""
EIGHT_BIT_TEMPORARIES = {"cpu": 53, "cuda": 8}
"""Bytes for each number of the largest tensor while its weights are updated. On a CPU, where the step is not compiled,
they were measured. On a GPU, the compiled step needs both moments in float32."""


def in_eight_bits(numbers: int) -> bool:
    """Return whether the moments of a tensor of this size are held in 8 bits, if the config asks for that."""
    return numbers >= EIGHT_BIT_LEAST and numbers % EIGHT_BIT_BLOCK == 0


def eight_bit_bytes(numbers: int) -> int:
    """Return the bytes of both moments of a tensor, with `train.optimizer = adamw_8bit`.

    >>> eight_bit_bytes(4096), eight_bit_bytes(4097)
    (10368, 32776)
    """
    if not in_eight_bits(numbers):
        return 2 * 4 * numbers
    return 2 * (numbers + 4 * (numbers // EIGHT_BIT_BLOCK + EIGHT_BIT_TABLE))
