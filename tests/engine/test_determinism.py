"""On a CPU, two processes compute bit-identical results.

On a GPU, XLA autotunes matrix products by timing them, so two processes agree only within rounding
unless `--xla_gpu_deterministic_ops` is set; bitwise equality is not claimed there.
"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from pagedjax import SamplingParams
from tests.support.tiny_llama import make_engine

engine = make_engine()
for i in range(6):
    params = SamplingParams(
        seed=i, max_tokens=9 + i, temperature=i / 3, logprobs=2, ignore_eos=True
    )
    engine.add_request(str(i), list(range(3, 8 + 5 * i)), params)
for output in sorted(engine.run(), key=lambda each: each.request_id):
    completion = output.outputs[0]
    logprobs = [value.logprob.hex() for each in completion.logprobs for value in each.values()]
    print(completion.token_ids, logprobs)
print([score.tobytes().hex() for score in engine.compute_logprobs([list(range(3, 90))])])
"""


def test_two_processes_agree_bit_for_bit() -> None:
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[2]
    runs = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (run.communicate(timeout=300)[0] for run in runs)
    assert first == second and len(first) > 1000
