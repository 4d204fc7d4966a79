"""Compile the kernels, lay out their arguments, and check each one against its PyTorch formula.

A kernel is used only if it computes the same as its formula. The C++ code is compiled for this machine's processor when
it is first needed, and the library is kept for later starts. Kernels read their arguments in special layouts: families
of segments, places of rows, weights in panels.

L tokens, n rows, B rows of logits, V vocabulary, E width of the model, I width of a gated MLP or expert, X experts, k
experts for each row, H query heads, K key-value heads, N = H + 2 K, D width of a head, C columns of keys and values.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from posttrain.cache import cache_folder
from posttrain.errors import DoesNotFit
from posttrain.files import write_atomically
from posttrain.models.compute import machine

if TYPE_CHECKING:
    from posttrain.cpu.kernels import Kernels

COMPILER = "g++"
"""The compiler if CXX names no other. It uses the OpenMP that PyTorch has already loaded, so both share threads."""
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-std=c++17", "-shared", "-fPIC")
MOST_SECONDS = 120


class Unavailable(Exception):
    """There is no compiled library. The message says why in one sentence."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str
    """First line of its `--version`."""


def find_compiler() -> Compiler:
    """Find the compiler named by CXX, which may contain arguments, or else g++. Raises Unavailable."""
    try:
        command = shlex.split(os.environ.get("CXX", "")) or [COMPILER]
    except ValueError as error:
        raise Unavailable(f"CXX is no command line ({error})") from error
    found = shutil.which(command[0])
    if found is None:
        raise Unavailable(f"no C++ compiler was found ({command[0]})")
    command = (found, *command[1:])
    return Compiler(command, next(iter(_run([*command, "--version"]).splitlines()), ""))


def compiled(source: Path, compiler: Compiler) -> Path:
    """The shared library of a C++ file, in the cache folder. It takes seconds if it has to be compiled.

    Its name contains a hash of everything that it depends on: the source, the compiler, the C library and the features
    of the processor. A damaged library is compiled again. Several processes may call this at the same time. Raises
    Unavailable.
    """
    made_of = [*FLAGS, *compiler.command, compiler.version, *platform.libc_ver(), machine()]
    key = hashlib.sha256("\n".join(made_of).encode() + source.read_bytes()).hexdigest()[:16]
    try:
        library = cache_folder("compiled") / f"{source.stem}-{key}.so"
        digest = library.with_suffix(".sha256")
        if library.is_file() and digest.is_file() and digest.read_text() == _digest(library.read_bytes()):
            return library
        content = _compile(source, compiler)
        write_atomically(library, content)
        write_atomically(digest, _digest(content))
    except (OSError, RuntimeError, DoesNotFit) as error:  # RuntimeError: there is no home folder
        raise Unavailable(f"the cache folder cannot be used ({error})") from error
    return library


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compile(source: Path, compiler: Compiler) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "library.so"
        _run([*compiler.command, *FLAGS, str(source), "-o", str(target)])
        return target.read_bytes()


def _run(command: list[str]) -> str:
    """Run a command and return its output. Raises Unavailable if it cannot be run, fails or takes too long."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} took more than {MOST_SECONDS} seconds") from error
    except OSError as error:
        raise Unavailable(f"{name} cannot be run ({error.strerror})") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise Unavailable(f"{name} failed with exit code {done.returncode} ({said})")
    return done.stdout


PANEL = 64
"""Number of outputs of a linear layer whose weights are stored together."""
CHUNK_ROWS = 8
"""Number of rows of one prompt that are computed together. They share one read of the prompt's keys and values."""


@dataclass(frozen=True)
class Families:
    """Segments of packed rows, in families. The segments of a family see a prefix of its first segment, and then their
    own tokens."""

    segments: Tensor
    """Start, length and prefix length of each segment, `[segments, 3]`. The first segment of a family has no prefix."""
    starts: Tensor
    """Index in `segments` where each family begins, and the end, `[families + 1]`."""

    @property
    def number(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def tokens(self) -> int:
        """Number of tokens of all segments together."""
        return int(self.segments[:, 1].sum())


@dataclass(frozen=True)
class RowPlaces:
    """The places of n rows. They are valid for as long as the same rows are in flight."""

    prompts_n: Tensor
    """Slot of the prompt that each row began with."""
    lengths_n: Tensor
    """Number of tokens of that prompt."""
    order_n: Tensor
    """Indices of the rows, sorted by prompt."""
    chunks: Tensor
    """Index in `order_n` where each chunk of rows of one prompt begins, and the end, `[number + 1]`."""

    @staticmethod
    def of(prompt_n: Sequence[int], lengths: Sequence[int]) -> RowPlaces:
        """`lengths`: the number of tokens of each prompt."""
        prompts, lengths_P = np.array(prompt_n, dtype=np.int64), np.array(lengths, dtype=np.int64)
        order = np.argsort(prompts, kind="stable")
        first = np.flatnonzero(np.diff(prompts[order], prepend=-1))
        ends = np.append(first[1:], len(order))
        chunks = [place for a, b in zip(first, ends, strict=True) for place in range(a, b, CHUNK_ROWS)]
        arrays = (prompts, lengths_P[prompts], order, np.array([*chunks, len(order)]))
        return RowPlaces(*map(torch.from_numpy, arrays))


def in_panels(weight_MK: Tensor) -> Tensor:
    """A flat copy of a weight for `Kernels.linear`: panels of `PANEL` outputs, one after the other, each transposed.

    In bfloat16, two neighbouring inputs stay together.
    """
    if weight_MK.dtype == torch.bfloat16:
        pairs_MK = weight_MK.clone() if weight_MK.storage_offset() % 2 else weight_MK
        return in_panels(pairs_MK.contiguous().view(torch.int32)).view(torch.bfloat16)
    whole = len(weight_MK) // PANEL * PANEL
    panels, rest = weight_MK[:whole].unflatten(0, (-1, PANEL)), weight_MK[whole:]
    return torch.cat([panels.transpose(1, 2).flatten(), rest.T.flatten()])


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Largest difference from the formula in float32, relative to the largest number."""


@torch.no_grad()
def check(made: Kernels) -> None:
    """Compare each function with its formula, in both precisions. Raises Unavailable if one differs."""
    generator = torch.Generator().manual_seed(0)
    for dtype in TOLERANCE:
        for name, (actual, expected) in _pairs(made, dtype, generator).items():
            if not (actual.float() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max():
                raise Unavailable(f"{name} differs from its formula in {dtype}")


def _pairs(made: Kernels, dtype: torch.dtype, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Name of each function -> its result, and the result of its formula in float32 for the same numbers."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)

    x_LE, weight_E, angles_L1D = noise(3, 48), torch.rand(48, generator=generator, dtype=torch.float32), noise(3, 1, 32)
    heads_LND, gate_up_LI = noise(3, 4, 32), 4 * noise(3, 96)
    exact, rotated = x_LE.float(), heads_LND.clone()
    made.rotate_(rotated[:, :3], angles_L1D.cos(), angles_L1D.sin())
    swapped = heads_LND.float().roll(16, dims=-1)
    expected = heads_LND.float() * angles_L1D.cos().float() + swapped * angles_L1D.sin().float()
    gate, up = gate_up_LI.float().chunk(2, dim=-1)
    return {
        **_linear_pair(made, x_LE, noise(80, 48), noise(80)),
        "rms_norm": (made.rms_norm(x_LE, weight_E, 0.1), _normed(exact, weight_E)),
        "rotate": (rotated, torch.cat([expected[:, :3], heads_LND[:, 3:].float()], dim=1)),
        "silu_gate": (made.silu_gate(gate_up_LI), torch.nn.functional.silu(gate) * up),
        "attend_rows": _attention_pair(made, noise),
        **_segment_pairs(made, noise),
        "experts": _experts_pair(made, noise),
        **_choice_pairs(made, 3 * noise(40, 700)),
    }


def _linear_pair(made: Kernels, x_LE: Tensor, weight_ME: Tensor, bias_M: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    if not made.can_multiply(x_LE.dtype, weight_ME.shape[1], len(weight_ME)):
        return {}
    actual = made.linear(x_LE, in_panels(weight_ME), bias_M, len(weight_ME))
    return {"linear": (actual, x_LE.float() @ weight_ME.float().T + bias_M.float())}


def _choice_pairs(made: Kernels, logits_BV: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Tokens and their log-probabilities, sampled with uniform numbers from near 0 to near 1 and in reverse order."""
    num_rows, logprobs_BV = len(logits_BV), (logits_BV.float() / 0.7).log_softmax(dim=-1)
    steps_B = (torch.arange(num_rows, dtype=torch.float64) + 0.5) / num_rows
    ids_B, actual_B = made.choose(logits_BV, torch.stack([steps_B, steps_B.flip(0)], dim=1), 0.7)
    expected_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    weights_BNb = torch.nn.functional.pad(logprobs_BV.exp(), (0, -700 % 256)).view(num_rows, -1, 256).double()
    running_BN = weights_BNb.sum(dim=-1).cumsum(dim=-1)
    blocks_B = (running_BN <= steps_B[:, None] * running_BN[:, -1:]).sum(dim=-1)
    inside_Bb = weights_BNb[torch.arange(num_rows), blocks_B].cumsum(dim=-1)
    tokens_B = blocks_B * 256 + (inside_Bb <= steps_B.flip(0)[:, None] * inside_Bb[:, -1:]).sum(dim=-1)
    return {"choose (tokens)": (ids_B, tokens_B.float()), "choose": (actual_B, expected_B)}


def _experts_pair(made: Kernels, noise: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The results for nine rows and four experts. No row chose one of the experts, and every row chose another."""
    x_nE, gate_up_XJE, down_XEI, shares_nk = noise(9, 48), noise(4, 64, 48), noise(4, 48, 32), noise(9, 2)
    chosen_nk = torch.tensor([[2, row % 2] for row in range(9)])
    expected = torch.zeros(9, 48, dtype=torch.float32)
    for row in range(9):
        for expert, share in zip(chosen_nk[row], shares_nk[row].float(), strict=True):
            gate, up = (gate_up_XJE[expert].float() @ x_nE[row].float()).chunk(2)
            expected[row] += share * (down_XEI[expert].float() @ (torch.nn.functional.silu(gate) * up))
    return made.experts(x_nE, gate_up_XJE, down_XEI, chosen_nk, shares_nk), expected


def _attention_pair(made: Kernels, noise: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The results for three rows after two prompts, with two query heads of width 32 for each of two key heads."""
    prompt_n, lengths, ages, scaling = [1, 0, 1], [19, 5], [0, 17, 3], 0.2
    qkv_nND, mask_nC = noise(3, 8, 32), noise(3, 32 + 32)
    prompts, rows = ((noise(slots, 2, 32, 48), noise(slots, 2, 48, 32)) for slots in (2, 3))
    places = RowPlaces.of(prompt_n, lengths)
    out_nHD = made.attend_rows(qkv_nND, places, torch.tensor(ages), prompts, rows, scaling, mask_nC, 32).view(3, 4, 32)
    expected = torch.zeros(3, 4, 32, dtype=torch.float32)
    for row, (prompt, age) in enumerate(zip(prompt_n, ages, strict=True)):
        length = lengths[prompt]
        added_C = torch.cat([mask_nC[row, :length], mask_nC[row, 32 : 33 + age]]).float()
        for head in range(4):
            past = prompts[0][prompt, head // 2, :, :length], rows[0][row, head // 2, :, :age]
            keys_DC = torch.cat([*past, qkv_nND[row, 4 + head // 2, :, None]], dim=-1).float()
            past = prompts[1][prompt, head // 2, :length], rows[1][row, head // 2, :age]
            values_CD = torch.cat([*past, qkv_nND[row, 6 + head // 2, None]]).float()
            scores_C = qkv_nND[row, head].float() @ keys_DC * scaling + added_C
            expected[row, head] = scores_C.softmax(dim=-1) @ values_CD
    return out_nHD, expected


def _normed(x: Tensor, weight_E: Tensor) -> Tensor:
    return x * (x.square().mean(dim=-1, keepdim=True) + 0.1).rsqrt() * weight_E


@torch.enable_grad()
def _segment_pairs(made: Kernels, noise: Callable[..., Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The results for a row of 40 tokens, a row of 21 that begins with 17 of those, and a separate row, with four query
    heads and two key heads."""
    rows = [[*range(40)], [*range(17), *range(40, 44)], [*range(44, 64)]]
    families = Families(torch.tensor([[0, 40, 0], [40, 4, 17], [44, 20, 0]]), torch.tensor([0, 2, 3]))
    qk_LND = noise(64, 6, 32)
    tensors = qk_LND[:, :4], qk_LND[:, 4:], noise(64, 2, 16)
    query, key, value = (x.float().requires_grad_() for x in tensors)
    expected, own = torch.zeros(64, 4, 16, dtype=torch.float32), [0, 17, 0]
    for row, first in zip(rows, own, strict=True):
        q, k, v = (x[row].transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(2, dim=0) for x in (k, v))
        hidden_TT = torch.ones(len(row), len(row), dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(1, 2) * 0.2).masked_fill(hidden_TT, -torch.inf).softmax(dim=-1)
        expected = expected.index_add(0, torch.tensor(row[first:]), (weights @ v).transpose(0, 1)[first:])
    gradient = noise(64, 4, 16)
    gradients = torch.autograd.grad(expected, (query, key, value), gradient.float())
    out, logsums = made.attend_segments(*tensors, families, 0.2)
    dqk_LND = torch.zeros_like(qk_LND)
    found = dqk_LND[:, :4], dqk_LND[:, 4:], torch.empty_like(tensors[2])
    made.attend_segments_backward(gradient, tensors, found, logsums, families, 0.2)
    names = ("queries", "keys", "values")
    pairs = {f"attend_segments ({name})": pair for name, *pair in zip(names, found, gradients, strict=True)}
    return {"attend_segments": (out, expected.detach()), **{name: (a, b) for name, (a, b) in pairs.items()}}
