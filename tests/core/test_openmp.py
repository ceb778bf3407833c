"""Every thread of torch's OpenMP pool is reached."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from hasten.core import openmp


@pytest.mark.parametrize("count", [1, 3])
def test_every_thread_of_the_pool_acts_once(count: Any) -> None:
    if count > 1 and not openmp.read_openmp()[0]:
        pytest.skip(openmp.read_openmp()[1])
    torch.set_num_threads(count)
    seen: list[int] = []
    assert openmp.on_every_thread(lambda: seen.append(threading.get_ident())) == count
    assert len(seen) == len(set(seen)) == count
    assert threading.get_ident() in seen
