"""The one definition of a log-probability in the trainer: temperature, precision, alignment, and no padding computed.

B rows, T tokens of a padded row, L packed tokens, N scored positions, D width of the hidden state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.models.forward_path import causal_lm, forward_path
from posttrain.models.packing import Packed, pack
from posttrain.types import Outputs, Tokens


def token_logprobs(
    model: nn.Module,
    tokens: Tokens,
    mask_BT: Tensor,
    *,
    temperature: float,
    with_entropy: bool = False,
    chunk_tokens: int = 1024,
) -> Outputs:
    """Log-probability of every scored token given the tokens before it in its row, with gradient.

    `mask_BT` says which tokens are scored; entry t of the result describes `input_ids_BT[:, t]` and is exactly 0 where
    the mask is False. Logits are divided by `temperature` (RULE 1); the log-softmax is float32, float64 for a float64
    model (RULE 2); everything before it runs in the precision of an enclosing autocast.

    `pack(tokens, mask_BT).num_tokens` tokens go through the model: of each row those before its last scored token, of a
    row that scores nothing none. The head sees the positions before scored tokens only, `chunk_tokens` at a time.

    Raises ValueError when the mask scores padding or the first token of a row, ModelError for a model that is not a
    causal language model.
    """
    packed = pack(tokens, mask_BT)
    lm = causal_lm(model)
    if packed.num_tokens == 0:
        return _nothing_scored(lm, tokens, with_entropy)
    path = forward_path(lm)
    ids = tokens.input_ids_BT.flatten()
    hidden_LD = path.hidden(_take(ids, packed.token_index_L).to(lm.device), packed)
    hidden_ND = _take(hidden_LD, packed.source_N)
    logprobs_N, entropy_N = path.score(
        lm,
        hidden_ND,
        _take(ids, packed.target_index_N).to(hidden_ND.device),
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=with_entropy,
    )
    return Outputs(
        logprobs_BT=_unpack(logprobs_N, tokens, packed),
        entropy_BT=None if entropy_N is None else _unpack(entropy_N, tokens, packed),
    )


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.to(x.device))


def _unpack(x_N: Tensor, tokens: Tokens, packed: Packed) -> Tensor:
    """`[N]` -> `[B, T]` beside the ids, 0 where nothing was scored."""
    x_N = x_N.to(tokens.input_ids_BT.device)
    zeros = x_N.new_zeros(tokens.input_ids_BT.numel())
    return zeros.index_copy(0, packed.target_index_N.to(x_N.device), x_N).view(tokens.input_ids_BT.shape)


def _nothing_scored(lm: PreTrainedModel, tokens: Tokens, with_entropy: bool) -> Outputs:
    """All zeros; a loss made of them can be differentiated and gives no parameter a gradient."""
    dtype = torch.promote_types(lm.dtype, torch.float32)
    zeros_BT = torch.zeros(tokens.input_ids_BT.shape, dtype=dtype, device=tokens.input_ids_BT.device)
    zeros_BT.requires_grad_(torch.is_grad_enabled())
    return Outputs(logprobs_BT=zeros_BT, entropy_BT=zeros_BT if with_entropy else None)
