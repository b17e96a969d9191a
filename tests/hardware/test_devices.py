"""Devices: every fact has a source, marketing and reported memory are two numbers, names are found or nearly found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pydantic import ValidationError

from kvgate.core.errors import UserError
from kvgate.hardware.device import Device, device, devices, parse_devices

MIB, GIB = 2**20, 2**30
ROW = """
[[device]]
id = "x1"
name = "Maker X1"
vendor = "nvidia"
"""


@pytest.mark.parametrize("found", devices().values(), ids=lambda d: d.id)
def test_sizes_agree_with_the_words_beside_them(found: Device) -> None:
    """A source that names MiB or GiB names the bytes that stand beside it."""
    for memory in (found.marketing, found.reported, found.runtime):
        if memory is None:
            continue
        mib = re.search(r"([\d,]+) MiB", memory.source)
        gib = re.search(r"([\d.]+) GiB", memory.source)
        if mib:
            assert memory.bytes == int(mib[1].replace(",", "")) * MIB
        elif gib:
            assert abs(memory.bytes - float(gib[1]) * GIB) <= 0.005 * GIB


@pytest.mark.parametrize("found", devices().values(), ids=lambda d: d.id)
def test_bandwidth_is_between_a_memory_stick_and_a_wafer(found: Device) -> None:
    """A bandwidth in GB taken for TB, or the other way round, is out of all devices' range."""
    if found.bandwidth is not None:
        assert 10**11 <= found.bandwidth.bytes_per_s <= 3 * 10**13


def test_the_h200_has_three_sizes() -> None:
    """141 GB on the data sheet is 150.75 GB in nvidia-smi; the plan starts from what the device reports."""
    h200 = device("h200")

    assert h200.marketing is not None and h200.marketing.bytes == 141_000_000_000
    assert h200.reported is not None and h200.reported.bytes == 143_771 * MIB == 150_754_820_096
    assert h200.memory is h200.reported
    assert device("h100").runtime is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("rtx-4090", "rtx4090"),
        ("h100 sxm", "h100"),
        ("A100", "a100-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Google TPU v6e", "tpu-v6e"),
        ("M3 Pro 18GB", "apple-18gb"),
    ],
)
def test_names_as_people_write_them(text: str, found: str) -> None:
    """Makers' names, blanks, dashes and case do not matter."""
    assert device(text).id == found


@pytest.mark.parametrize(
    ("text", "says"),
    [("h20O", "did you mean h20?"), ("rtx4900", "did you mean"), ("", "allowed"), ("\x1b[31m", "allowed")],
)
def test_unknown_names_get_the_nearest(text: str, says: str) -> None:
    """A name that is not there is one line with the nearest ones and the way without a device."""
    with pytest.raises(UserError) as error:
        device(text)

    assert says in str(error.value)
    assert str(error.value).endswith("or leave --device out")
    with pytest.raises(UserError, match=r"; or say how large it is$"):
        device(text, otherwise="say how large it is")


def test_shared_memory_is_not_the_devices() -> None:
    """Where CPU and GPU share memory the marketing figure is never taken for what a model gets."""
    assert device("apple").memory is None
    assert device("cpu").memory is None
    assert device("apple-16gb").memory is device("apple-16gb").reported


@pytest.mark.parametrize(
    "row",
    [
        'colour = "red"\n',
        "marketing = { bytes = 80_000_000_000 }\n",
        'marketing = { bytes = 0, source = "data sheet" }\n',
        'marketing = { bytes = 80_000_000_000, source = "data sheet" }\n'
        'reported = { bytes = 85, source = "nvidia-smi" }\n',
        'marketing = { bytes = 80_000_000_000, source = "data sheet" }\n'
        'reported = { bytes = 87_000_000_000, source = "nvidia-smi" }\n',
        'reported = { bytes = 80_000_000_000, source = "nvidia-smi" }\n'
        'runtime = { bytes = 81_000_000_000, source = "a log" }\n',
        "compute_capability = 9.0\n",
    ],
)
def test_rows_that_cannot_be_are_refused(row: str) -> None:
    """Unknown keys, sizes without a source, and sizes that contradict each other do not load."""
    with pytest.raises(ValidationError):
        parse_devices(ROW + row)


def test_a_row_without_facts_is_allowed() -> None:
    """What nobody knows is absent, not guessed."""
    (found,) = parse_devices(ROW)

    assert found.memory is None and found.bandwidth is None and found.fp8 is None


def test_devices_start_without_heavy_libraries() -> None:
    """Device facts need no numpy and no torch."""
    code = (
        "import sys, kvgate.hardware.device as d; d.device('h200'); "
        "print('numpy' in sys.modules, 'torch' in sys.modules)"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.split() == ["False", "False"]
