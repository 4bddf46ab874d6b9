"""An engine in a process whose JAX uses 64-bit types from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
from dataclasses import asdict
import jax.numpy as jnp
import numpy as np
from tests.engine.test_callers import everything

def processor(logits, context):
    longer = context.lengths[:, None] > jnp.arange(logits.shape[1])[None]
    return logits + context.extra["push"] + 0.5 * longer

push = np.linspace(0, 1, 128, dtype=np.float32)
for options in ({}, {"kv_cache_dtype": "int8", "logprobs_mode": "processed"}, {
    "logits_processor": processor, "extra": {"push": push}, "max_num_batched_tokens": 8
}):
    outputs, *others = everything(**options)
    print([asdict(each) for each in outputs], others)
"""


def results(x64: bool) -> str:
    env = os.environ | {"JAX_ENABLE_X64": str(int(x64)), "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert not found.returncode, found.stderr
    return found.stdout


def test_x64_set_before_the_import_changes_no_result() -> None:
    wanted = results(x64=False)
    assert len(wanted.splitlines()) == 3
    assert results(x64=True) == wanted
