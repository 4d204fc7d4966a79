"""Numbers that decide how much memory a run takes: read by the code that takes it, and by the planner that foresees it.

They stand apart because the modules that use them import transformers, which a plan does not wait for.
"""


def holds_base(device: str) -> bool:
    """Whether frozen weights under adapters, and those of reward models, are held in the precision of their products
    (models/policy.py, `hold_in`), as those of references and teachers are everywhere.

    On a GPU each product reads its weights from memory, and a cast of them reads and writes three times as much. On a
    CPU a run computes in float32 for the most part, and the sampler's copy is made from what the trainer holds.
    """
    return device == "cuda"


SHORT_KEYS = 512
"""Up to here short attention is used (cpu/segment_attention.py): the scores of a row stay in the processor's caches;
beyond, the fused kernel is the faster one."""
SLAB_NUMBERS = 2**18
"""Scores of the rows that short attention computes together: 1 MB. Of short rows, one at a time, calls are most of the
cost."""
SLOT_COLUMNS = 32
"""Columns of the cache of keys and values come in multiples of this (engines/slots.py)."""
GROUP_COLUMNS = 16
"""The same of a plain decoder (cpu/group_attention.py)."""
SLOT_GROWTH = 1.5
"""Slots that are full get this many times the columns: what is copied is bounded by what is written."""
COPIED_WEIGHTS = 2**21
"""Weights of a layer up to which it is copied, in panels or joined to others, whenever somebody begins to decode. The
call of a larger product costs little beside what it reads."""
LANES = 16
"""Numbers that compiled kernels take at a time: widths are multiples of it, those of heads of twice as many."""
SAMPLING_BLOCK = 256
"""Tokens of a block of the vocabulary, when a token is chosen (engines/sampling.py)."""
REWARD_TOKENS = 8192
"""Tokens that a reward model scores together (rewards/model.py)."""
PROBE_ROWS = 4
"""Prompts with which every delivery of weights is proved (engines/delivery.py)."""
PROBE_TOKENS = 32
PROBE_SCORED_TOKENS = 4
"""Of each of them."""
EIGHT_BIT_BLOCK = 256
"""Numbers of a moment in 8 bits that share a scale of four bytes (torchao)."""
EIGHT_BIT_LEAST = 4096
"""Numbers of the smallest tensor whose moments torchao holds in 8 bits."""
EIGHT_BIT_TABLE = 256
"""Numbers of four bytes that say what the codes of one moment mean."""
EIGHT_BIT_TEMPORARIES = {"cpu": 53, "cuda": 8}
"""Bytes for each number of the largest tensor while its weights are changed: as measured on a CPU, where the step runs
as it is written, and as compiled: both moments in float32."""


def in_eight_bits(numbers: int) -> bool:
    """Whether the moments of a tensor of so many numbers are held in 8 bits where the config asks for that."""
    return numbers >= EIGHT_BIT_LEAST and numbers % EIGHT_BIT_BLOCK == 0


def eight_bit_bytes(numbers: int) -> int:
    """Both moments of a tensor, with `train.optimizer = adamw_8bit`.

    >>> eight_bit_bytes(4096), eight_bit_bytes(4097)
    (10368, 32776)
    """
    if not in_eight_bits(numbers):
        return 2 * 4 * numbers
    return 2 * (numbers + 4 * (numbers // EIGHT_BIT_BLOCK + EIGHT_BIT_TABLE))
