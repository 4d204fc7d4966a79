"""Tensor parallelism: matrices divided among neighbours, so that each rank computes some heads and a part of each MLP.

    q, k, v, gate, up    divided by rows: a rank has the outputs of its heads, or of its part of the MLP
    o, down              divided by columns: a rank multiplies what it has, and the products are summed
    everything else      computed by each rank from the same numbers

So a block sums twice in a forward pass, and twice in a backward pass (arXiv:1909.08053, section 3). Neighbours pass the
same rows through the model, and between blocks all have the same hidden states, bit for bit.

Norms of queries and keys see the heads of one rank only, so each rank computes only a part of their gradient. PyTorch
would take it for the whole gradient; here the parts are summed. Matrices outside of blocks (embedding, head) are stored
in columns, and gathered for a pass. FSDP cuts each rank's part once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from transformers import PreTrainedConfig, PreTrainedModel

from posttrain.models.division import Sizes, refusal

OF_HEADS = ("q_norm", "k_norm")
"""Parameters that are the same for all heads and see only one rank's heads."""


def divide(name: str, root: nn.Module, model: PreTrainedModel, blocks: Sequence[nn.Module], mesh: DeviceMesh) -> AtHand:
    """Keep only this rank's part of the matrices of `model`. `root` contains the model, maybe with heads.

    Nothing is sent, because all ranks have opened the same model. Returns the weights outside of blocks, which must be
    gathered at the start of a pass. `name` is the model's name in errors.

    Raises ConfigError for a model of an untested type, or one that cannot be divided evenly.
    """
    require_divisible(name, model.config, mesh.size())
    for block in blocks:
        parallelize_module(block, mesh, dict(_styles(block)), src_data_rank=None)
        _lay_out(block, mesh, by_columns=False)
        for path, module in block.named_modules():
            if module._parameters and not isinstance(module, nn.Linear):
                norm = AtHand([(path, module)])  # separately: a block that recomputes activations enters its parts
                module.register_forward_pre_hook(norm.bring)
                module.register_forward_hook(norm.let_go, always_call=True)
    _lay_out(root, mesh, by_columns=True)
    inside = {id(module) for block in blocks for module in block.modules()}
    return AtHand((path, module) for path, module in root.named_modules() if id(module) not in inside)


def require_divisible(name: str, config: PreTrainedConfig, ranks: int) -> None:
    """Raise ConfigError for a model that `ranks` neighbours cannot divide; `name` is its name in the run."""
    text = config.get_text_config()
    sizes = Sizes(
        kind=text.model_type,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        mlp_width=getattr(text, "intermediate_size", 0),
        hidden=text.hidden_size,
    )
    if (error := refusal(sizes, ranks, given=f"train.tensor = {ranks}, for the {name},")) is not None:
        raise error


def _styles(block: nn.Module) -> Iterator[tuple[str, ParallelStyle]]:
    """Yield the parallel style of each part of a block, by name. Hidden states enter attention and MLP as one tensor,
    so that their gradient is summed once and not for each matrix."""
    whole = Replicate()
    yield (
        "self_attn",
        PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": whole}, desired_input_kwarg_layouts={"hidden_states": whole}
        ),
    )
    yield "mlp", PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,))
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        yield name, ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        yield name, RowwiseParallel()


def _lay_out(module: nn.Module, mesh: DeviceMesh, *, by_columns: bool) -> None:
    """Turn the remaining parameters into tensors of the mesh: matrices by columns if requested, others whole. A weight
    that two modules share stays shared."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for part in module.modules():
        for leaf, parameter in part._parameters.items():
            if parameter is None or isinstance(parameter, DTensor):
                continue
            if id(parameter) not in made:
                how: Placement = Shard(1) if by_columns and parameter.dim() > 1 else Replicate()
                laid = distribute_tensor(parameter.detach(), mesh, [how], src_data_rank=None)
                made[id(parameter)] = (parameter, nn.Parameter(laid, parameter.requires_grad))
            part._parameters[leaf] = made[id(parameter)][1]


# --- weights that every neighbour needs whole during a pass ----------------------------------------------------------


class AtHand:
    """Weights that every neighbour has whole during a pass.

    In a pass, an attribute hides the parameter of the same name: a whole tensor, whose gradient goes to the parameter.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """`modules` come with their names. The last part tells whether each rank finds only a part of the gradient."""
        self.modules = [
            (module, Partial() if name.rpartition(".")[2] in OF_HEADS else Replicate()) for name, module in modules
        ]

    def bring(self, *given: Any) -> None:
        """Gather the weights before a pass."""
        brought: dict[int, Tensor] = {}
        for module, gradient in self.modules:
            for leaf, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in brought:
                        brought[id(parameter)] = _whole(cast(DTensor, parameter), gradient)
                    vars(module)[leaf] = brought[id(parameter)]

    def let_go(self, *given: Any) -> None:
        """Free the weights after a pass."""
        for module, _ in self.modules:
            for leaf in module._parameters:
                vars(module).pop(leaf, None)


def _whole(parameter: DTensor, gradient: Placement) -> Tensor:
    return parameter.redistribute(placements=[Replicate()]).to_local(grad_placements=[gradient])
