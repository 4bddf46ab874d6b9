"""Generate text from a checkpoint: `python examples/quickstart.py MODEL`."""

import sys

from pagedjax import LLM, SamplingParams

llm = LLM(sys.argv[1], max_model_len=512, max_num_seqs=4)
params = SamplingParams(temperature=0.0, max_tokens=24)
question = [{"role": "user", "content": "What is the capital of France?"}]
for output in llm.generate(["The sea is", "Two and two make"], params) + llm.chat(question, params):
    print(repr(output.outputs[0].text), output.outputs[0].finish_reason)
