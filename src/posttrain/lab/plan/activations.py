"""Bytes that the packed forward pass saves for the backward pass, and the temporaries of both.

Counted from the autograd graph of transformers' decoders as models/packed_attention.py runs them. D is the width of the
hidden state, F that of the MLP; there are H query heads and K key-value heads of width d. A layer of Llama in float32
saves, for each of the L tokens that go through the model:

    norm              1 + D        its root, and the input of the gain (only if the gain is trained)
    inputs of q, k, v     D
    attention         H d + 2 K d  as grids: a branch repeats its prefix there, and with a mask the keys of each head
                      H d + H      output and log-sum-exp of the fused kernel; short attention saves the probabilities
                                   instead of these two (cpu/segment_attention.py)
    input of o        H d
    hidden state          D        after attention, for the norm that follows
    norm              1 + D
    inputs of the MLP     D
    MLP                 4 F        gate, up, act(gate), act(gate) * up
    hidden state          D        after the MLP, for the norm that follows

Under autocast the hidden state and its norm stay float32, and the results of products are bfloat16. Each product saves
its own cast of its input. The casts of the weights live until the backward pass has used them.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.functional.linear_logprobs import KEPT_BYTES, TILE_COLUMNS, TILE_NUMBERS, TILE_NUMBERS_ELSEWHERE
from posttrain.lab.plan.architecture import Architecture, Block
from posttrain.lab.plan.layout import Grid, Layout
from posttrain.lab.plan.records import BYTES, Adapters, Workload
from posttrain.lab.plan.roles import comes_together
from posttrain.models.footprint import SHORT_KEYS, SLAB_NUMBERS, holds_base

WIDE = 4
"""Bytes per number of the hidden state and of trained weights."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A forward pass of one model over one micro-batch."""

    architecture: Architecture
    layout: Layout
    narrow: int
    """Bytes per number of a product's result."""
    short: bool
    """True if attention of short rows saves its probabilities."""
    fused: bool
    """True if attention uses PyTorch's fused kernel."""
    trained: bool
    """True if all weights get a gradient. With adapters, only these do."""
    adapters: Adapters | None = None
    divided: bool = False
    """True if FSDP gathers the weights for each pass (roles.py)."""
    cast_before: bool = False
    """True if the gathered weights are already cast, so that products cast nothing."""
    held: bool = False
    """True if frozen matrices are stored in the precision of the products, so that products cast nothing."""

    @staticmethod
    def of(workload: Workload, architecture: Architecture, layout: Layout, *, adapters: Adapters | None) -> Pass:
        half = workload.precision == "bfloat16"
        return Pass(
            architecture=architecture,
            layout=layout,
            narrow=BYTES[workload.precision],
            short=workload.device == "cpu" and workload.attention == "sdpa" and (half or workload.onednn),
            fused=workload.attention == "sdpa",
            trained=adapters is None,
            adapters=adapters,
            divided=comes_together(workload),
            held=comes_together(workload) and adapters is not None and holds_base(workload.device),
            cast_before=comes_together(workload) and workload.gathers_casts,
        )

    # --- saved bytes -------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> int:
        """Bytes saved for the backward pass, by all layers and by the parts before and after them."""
        layers = sum(number * self.saved_by(block) for number, block in self.architecture.blocks)
        return layers + self.around

    @property
    def around(self) -> int:
        """Bytes outside of layers: ids, cosines and sines of positions, embedded tokens, the last norm."""
        a, tokens = self.architecture, self.layout.tokens
        rotary = 0 if a.learned_positions else 2 * a.key_width * WIDE
        norm = WIDE * (1 + (a.hidden if self.trained else 0))
        embedded = WIDE * a.hidden if self.trained else 0
        return tokens * (8 + rotary + embedded + norm)

    @property
    def checkpointed(self) -> int:
        """Bytes saved with checkpointing: the input of each layer, instead of the layers' saved tensors."""
        return self.architecture.layers * self.layout.tokens * self.architecture.hidden * WIDE + self.around

    def saved_by(self, block: Block) -> int:
        a, tokens = self.architecture, self.layout.tokens
        norms = 2 if self.architecture.family.norms <= 2 else self.architecture.family.norms
        states = WIDE * tokens * a.hidden * (2 + max(0, norms - 2))  # after attention, after the MLP, before post-norms
        gains = WIDE * tokens * norms * (1 + (a.hidden if self.trained and a.family.norm == "rms" else 0))
        return states + gains + self._inputs(block) + self.attention_saved + self._mlp(block) + self._casts(block)

    def _inputs(self, block: Block) -> int:
        """Return the bytes of saved inputs of products: normed hidden states, the output of attention, and adapters."""
        a, tokens = self.architecture, self.layout.tokens
        readers = sum(linear.inputs == a.hidden and linear.name != "o" for linear in block.linears)
        copies = 2 if self.narrow == WIDE else readers  # one before attention and one before the MLP, or one each
        low_rank = self.adapters.rank * len(block.linears) if self.adapters else 0
        return tokens * self.narrow * (copies * a.hidden + a.heads * a.value_width + low_rank)

    @property
    def attention_saved(self) -> int:
        """Bytes that attention saves: queries, keys and values as it reads them, and its own results."""
        a, tokens = self.architecture, self.layout.tokens
        queries = tokens * a.heads * a.key_width
        if a.family.qk_norm:
            queries += 2 * tokens * (a.heads + a.kv_heads) * a.key_width
        if a.family.fused_qkv:
            queries += tokens * (a.heads * a.key_width + a.kv_heads * a.key_width)
        kept = self.narrow * tokens * a.kv_width  # trunks read the packed keys and values themselves
        for grid in self.layout.grids:
            short = self._is_short(grid)
            if grid.prefix:
                heads = a.kv_heads if short else a.heads  # a masked grid repeats keys
                kept += self.narrow * grid.rows * grid.keys * heads * (a.key_width + a.value_width)
            if short or not self.fused:
                kept += self.narrow * grid.rows * grid.queries * grid.keys * a.heads
            else:
                kept += grid.rows * grid.queries * a.heads * (self.narrow * a.value_width + WIDE)
                kept += WIDE * grid.queries * grid.keys if grid.prefix else 0  # its mask, as numbers
        return self.narrow * queries + kept

    def _mlp(self, block: Block) -> int:
        width = sum(linear.outputs for linear in block.mlp if linear.name != "down")
        down = sum(linear.inputs for linear in block.mlp if linear.name == "down")
        gated = any("gate" in linear.name for linear in block.mlp)
        per_token = width + (2 * down if gated else down)  # act(gate) and the product; or act(up) alone
        if block.mixture is not None:
            mixture = block.mixture
            per_token += mixture.per_token * (4 * mixture.width + 2 * mixture.hidden)
        return self.layout.tokens * self.narrow * per_token

    def _casts(self, block: Block) -> int:
        """Return the bytes of the casts of a layer's weights, experts included, that products save for the backward
        pass. 0 if the weights are gathered already cast, because they are freed layer by layer."""
        if self.narrow == WIDE or self.cast_before or self.held:
            return 0
        mixture = block.mixture
        experts = 0 if mixture is None else mixture.experts * mixture.expert_parameters + mixture.router_parameters
        return self.narrow * (sum(linear.parameters for linear in block.linears) + experts)

    @property
    def cached_casts(self) -> int:
        """Bytes of cached casts. Autocast keeps the casts of trained weights until the end of the pass, also without
        gradient. For divided weights the cache is off (models/policy.py): only one layer's casts exist at a time."""
        layers = [number * self._casts(block) for number, block in self.architecture.blocks] if self.trained else [0]
        return max(self._casts(block) for _, block in self.architecture.blocks) if self.divided else sum(layers)

    # --- temporaries --------------------------------------------------------------------------------------------------

    @property
    def forward_moment(self) -> int:
        """Peak bytes of a forward pass without gradient: the larger of MLP and attention, and four hidden states (the
        embedded tokens, the inputs of the layer and of its part, and the norm). Eager attention keeps the scores of one
        grid at a time."""
        a, tokens = self.architecture, self.layout.tokens
        rotary = 0 if a.learned_positions else 2 * a.key_width * WIDE
        in_mlp = tokens * self.narrow * 3 * self.widest_mlp  # act(gate), up and their product
        wide = WIDE * (1 if self.narrow == WIDE else 2)  # scores, and their softmax if it is narrower
        in_attention = self.attention_saved + self.eager_scores + wide * self.slab
        if not self.fused:
            largest = max((grid.rows * grid.queries * grid.keys for grid in self.layout.grids), default=0)
            in_attention -= (self.narrow + WIDE) * (self.layout.scores - largest) * a.heads
        return tokens * (WIDE * 4 * a.hidden + rotary + 8) + max(in_mlp, in_attention)

    @property
    def backward_moment(self) -> int:
        """Peak temporary bytes of the backward pass: the gradient of a hidden state, and the larger of two: in the MLP,
        three gradients less the product act(gate) * up; in attention, the gradients of probabilities and scores."""
        in_mlp = self.layout.tokens * self.narrow * 2 * self.widest_mlp
        in_attention = 2 * max(self.eager_scores, self.narrow * self.slab)
        return max(in_mlp, in_attention) + WIDE * self.layout.tokens * self.architecture.hidden

    @property
    def slab(self) -> int:
        """Number of scores, over all heads, of the rows that short attention computes together."""
        most = 0
        for grid in filter(self._is_short, self.layout.grids):
            of_a_row = self.architecture.heads * grid.queries * grid.keys
            most = max(most, of_a_row * min(grid.rows, max(1, SLAB_NUMBERS // max(1, of_a_row))))
        return most

    def _is_short(self, grid: Grid) -> bool:
        return self.short and grid.keys <= SHORT_KEYS

    @property
    def eager_scores(self) -> int:
        """Bytes of full attention scores in float32. 0 with the fused kernel, which materialises none."""
        return 0 if self.fused else WIDE * self.layout.scores * self.architecture.heads

    @property
    def widest_mlp(self) -> int:
        """The width of the MLP that a token passes: that of its chosen experts or of the dense MLP, whichever is
        larger, because they run one after the other."""
        return max(max(_mlp_width(block), _experts_width(block)) for _, block in self.architecture.blocks)


def _mlp_width(block: Block) -> int:
    return block.mlp[-1].inputs if block.mlp else 0


def _experts_width(block: Block) -> int:
    return block.mixture.per_token * block.mixture.width if block.mixture else 0


# --- the head --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Head:
    """The log-probabilities of one micro-batch."""

    architecture: Architecture
    scored: int
    chunk_tokens: int
    narrow: int
    device: str
    trained: bool

    @staticmethod
    def of(workload: Workload, architecture: Architecture, scored: int, *, trained: bool) -> Head:
        return Head(
            architecture=architecture,
            scored=scored,
            chunk_tokens=workload.logprob_chunk_tokens,
            narrow=BYTES[workload.precision],
            device=workload.device,
            trained=trained,
        )

    @property
    def tile(self) -> int:
        """Number of logits in the largest tile: a chunk of positions by a part of the vocabulary."""
        return self._tile_rows * min(self._tile_columns, self.architecture.vocabulary)

    @property
    def tiles_at_once(self) -> int:
        """Number of tiles alive at a time. The previous tile, if any, still exists while a tile is computed."""
        is_one = self.scored <= self.chunk_tokens and self.architecture.vocabulary <= self._tile_columns
        return 1 if is_one else 2

    @property
    def _tile_rows(self) -> int:
        return max(1, min(self.scored, self.chunk_tokens))

    @property
    def _tile_columns(self) -> int:
        numbers = TILE_NUMBERS if self.device == "cpu" else TILE_NUMBERS_ELSEWHERE
        return max(TILE_COLUMNS, numbers // self._tile_rows)

    @property
    def kept(self) -> int:
        """Bytes of the logits saved for the backward pass, and of the hidden states."""
        logits = min(self.scored * self.architecture.vocabulary * self.narrow, KEPT_BYTES)
        return logits + self.states

    @property
    def states(self) -> int:
        """Bytes of the hidden states before scored tokens, with sums over the vocabulary, targets and positions."""
        return self.scored * (WIDE * self.architecture.hidden + 4 * WIDE + 3 * 8)

    @property
    def backward_moment(self) -> int:
        """Temporary bytes of the backward pass: tiles and the gradient of hidden states, without `weight_gradient`.

        In half precision there is a tile in float32, its cast, and the cast of the previous tile.
        """
        half = self.narrow < WIDE
        states = self.scored * self.architecture.hidden * (WIDE + (self.narrow if half else 0))
        tiles = WIDE * self.tile + 2 * self.narrow * self.tile if half else self.tiles_at_once * WIDE * self.tile
        return tiles + states

    @property
    def weight_gradient(self) -> int:
        return WIDE * self.architecture.vocabulary * self.architecture.hidden if self.trained else 0

    @property
    def forward_moment(self) -> int:
        """Peak bytes of a forward pass without gradient: tiles and hidden states."""
        return self.states + self.tiles

    @property
    def tiles(self) -> int:
        """Bytes of tiles in a forward pass: the current one and the previous one."""
        return self.tiles_at_once * WIDE * self.tile

    @property
    def trained_forward(self) -> int:
        """Bytes in a forward pass that saves its tiles: a tile, and its exponentials for the entropy."""
        return 2 * WIDE * self.tile
