"""The table of devices, the names that people and drivers use, and the limits of a container."""

from __future__ import annotations

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.config import load_config
from posttrain.errors import ConfigError
from posttrain.lab.plan.api import plan_for
from posttrain.lab.plan.hardware import devices, find_hardware, has_bfloat16, known_device, this_gpu, this_processor
from posttrain.lab.plan.target import Target, available_memory, free_disk
from posttrain.models import compute


@catalogue(
    "text, count, key",
    [
        ("8xH100", 8, "h100"),
        ("2 x A100", 2, "a100-80gb"),
        ("RTX 4090", 1, "rtx-4090"),
        ("4*l40s", 4, "l40s"),
        ("3090", 1, "rtx-3090"),
        ("NVIDIA H200", 1, "h200"),
        ("2 x NVIDIA A100-SXM4-80GB", 2, "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", 1, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 1, "a100-80gb"),
        ("8x NVIDIA H100 80GB HBM3", 8, "h100"),
        ("NVIDIA H100 SXM 80 GB", 1, "h100"),
        ("NVIDIA GeForce RTX 4090", 1, "rtx-4090"),
        ("Tesla T4", 1, "t4"),
        ("AMD Instinct MI300X", 1, "mi300x"),
        ("H100x8", 8, "h100"),
        ("H100:4", 4, "h100"),
        ("MI300X:8", 8, "mi300x"),
        ("RTX 4090 x 2", 2, "rtx-4090"),
        ("4090x8", 8, "rtx-4090"),
        ("8 H100", 8, "h100"),
        ("8h100", 8, "h100"),
        ("2-rtx-4090", 2, "rtx-4090"),
        ("2 NVIDIA GeForce RTX 4090", 2, "rtx-4090"),
        ("2 4090", 2, "rtx-4090"),
        ("8  h100", 8, "h100"),
        ("8_h100", 8, "h100"),
        ("8, h100", 8, "h100"),
        ("8×h100", 8, "h100"),
        ("1000 h100", 1000, "h100"),
        ("h100 8", 8, "h100"),
        ("MI300X 8", 8, "mi300x"),
        ("H100 80 GB 8", 8, "h100"),
        ("RTX 4090 24 G", 1, "rtx-4090"),
    ],
)
def test_devices_are_found_as_people_write_them(text, count, key):
    found = find_hardware(text)
    assert (found.count, found.device.key) == (count, key)


@catalogue(
    "text, meant",
    [
        ("1x24", "24 GB have l4, a10g, rtx-4090, rtx-3090: for example --gpus l4."),
        ("8x80gb", "80 GB have h100, a100-80gb: for example --gpus 8xh100."),
        ("8xh900", "Did you mean --gpus 8xh"),
        ("RTX 4080", "Did you mean --gpus rtx-4090?"),
        ("8x NVIDIA RTX 4080", "Did you mean --gpus 8xrtx-4090?"),
        ("8xh100x2", "Did you mean --gpus 8xh100?"),
        ("8 h900", "Did you mean --gpus 8xh"),
        ("24 GB", "24 GB have l4, a10g, rtx-4090, rtx-3090: for example --gpus l4."),
        ("24 GiB", "24 GB have l4, a10g, rtx-4090, rtx-3090: for example --gpus l4."),
        ("8 80gb", "80 GB have h100, a100-80gb: for example --gpus 8xh100."),
        ("8x24g", "24 GB have l4, a10g, rtx-4090, rtx-3090: for example --gpus 8xl4."),
        ("8 gb200", "Did you mean --gpus 8xb200?"),
        ("h900 8", "Did you mean --gpus 8xh"),
        ("24 G RTX 3090", "Did you mean --gpus rtx-3090?"),
        ("A100 80", "Did you mean --gpus a100-80gb?"),
        ("3090 4090", "Did you mean --gpus rtx-"),
        ("rtx-409", "Did you mean --gpus rtx-4090?"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "Did you mean --gpus rtx-4090?"),
        ("2x NVIDIA H100 PCIe", "Did you mean --gpus 2xh100?"),
        ("NVIDIA A100-SXM4-64GB", "Did you mean --gpus a100-"),
        ("8xTPU", "For example --gpus 8xH100"),
        ("", "For example --gpus 8xH100"),
    ],
)
def test_what_is_in_no_table_is_no_other_device_and_the_nearest_name_is_said(text, meant):
    """A laptop's card has less memory than the desktop's. An H100 on PCIe has three quarters of the operations."""
    with pytest.raises(ConfigError) as refused:
        find_hardware(text)
    assert meant in str(refused.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_devices_are_found_as_drivers_call_them(name, key):
    found = known_device(name)
    assert found is not None
    assert found.key == key


def test_an_unknown_device_is_refused_by_name_and_stands_for_an_a100_when_it_is_there():
    with pytest.raises(ConfigError, match=r"gpus = '8xh900'; allowed: a count and one of h100, h200"):
        find_hardware("8xh900")
    own = this_gpu("NVIDIA X9", total=64 * 2**30, free=60 * 2**30)
    assert own.memory == 60 * 2**30
    assert "as fast as an A100" in own.name


def test_the_table_is_plausible():
    """A matrix product has more operations per second than float32 alone, and the memory agrees with the name."""
    for device in devices().values():
        named = next(
            int(word) for word in device.title.split() if word.isdigit() and word not in ("4090", "5090", "3090")
        )
        assert 0.9 * named < device.memory / 2**30 <= named
        assert device.bfloat16 is None or device.bfloat16 > device.float32
        assert device.peak("bfloat16") >= device.peak("float32")
        assert device.price is not None
        assert 0 < device.price[0] < device.price[1]


def test_this_processor_is_measured():
    own = this_processor(2**30)
    assert own.memory == 2**30
    assert own.device.price is None
    assert 1e8 < own.device.float32 < 1e14
    assert 1e8 < own.device.bandwidth < 1e13


@pytest.mark.parametrize(
    ("facts", "has"),
    [
        ({"flags": "fpu sse2 avx2 avx512f avx512_bf16"}, True),
        ({"flags": "avx512f amx_bf16 amx_tile"}, True),
        ({"Features": "fp asimd bf16"}, True),
        ({"flags": "fpu sse2 avx2 avx512f"}, False),
        ({}, False),
    ],
)
def test_a_processor_says_whether_it_multiplies_bfloat16(facts, has):
    assert has_bfloat16(facts) == has


def test_only_instructions_for_bfloat16_make_it_faster_and_the_choice_of_auto():
    """Precision `auto` chooses bfloat16 only with them, like models/compute.py."""
    flags = ("avx512f avx512_bf16", "avx512f")
    with_it, without = (this_processor(2**40, (1e11, 1e10), facts={"flags": words}) for words in flags)
    assert with_it.rate("bfloat16") == pytest.approx(1.6 * with_it.rate("float32"))
    assert without.rate("bfloat16") == without.rate("float32") == with_it.rate("float32")
    config = load_config({"model": "0.5b", "algorithm": "sft", "data": {"train": "t.jsonl"}, "train": {"steps": 500}})
    chosen = [plan_for(config.config, Target(hardware=one)).workload.precision for one in (with_it, without)]
    assert chosen == ["bfloat16", "float32"]


def test_float32_is_multiplied_faster_through_onednn_where_that_was_measured():
    zen4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}
    facts = [{"flags": "avx2"}, {"flags": "avx512f"}, {"flags": "avx512f"} | zen4, {"flags": "avx2"} | zen4]
    plain, *others = (this_processor(2**40, (1e11, 1e10), facts=told).rate("float32") for told in facts)
    assert [rate / plain for rate in others] == pytest.approx([1.7, 1.2, 1.0])


@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="this PyTorch cannot say")
def test_the_planner_sees_the_instructions_that_pytorch_sees():
    assert has_bfloat16() == compute.has_bfloat16()


def test_the_nearest_limit_of_a_control_group_counts_and_its_file_cache_does_not(tmp_path):
    groups, own = tmp_path / "groups", tmp_path / "cgroup"
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "1000000"), (inner.parent, "max")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("600000")
        (folder / "memory.stat").write_text("anon 400000\ninactive_file 50000\nactive_file 100000\nshmem 50000\n")
    own.write_text("0::/outer/inner\n")
    found = available_memory(groups, own)
    assert (found.memory, found.limit, found.swap) == (550_000, "the limit of the control group", 0)


def test_free_disk_is_that_of_the_place_where_a_folder_would_be(tmp_path):
    assert free_disk(tmp_path / "not" / "there") == pytest.approx(free_disk(tmp_path), rel=0.01)


@pytest.mark.parametrize("text", ["h100 94", "h100-96", "b200 192", "v100 32"])
def test_a_memory_behind_a_name_is_no_count(text: str):
    with pytest.raises(ConfigError):
        find_hardware(text)
    assert [find_hardware(f"h100 {count}").count for count in (8, 16, 64)] == [8, 16, 64]
