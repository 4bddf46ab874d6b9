"""Small cases of the attention benchmark, and the devices that run them."""

import jax

from bench.attention.paths import Where
from bench.attention.shapes import Case, Heads

SMALL = Heads("small", 6, 2, 64)
CPU = Where(jax.devices()[0])
INTERPRETED = Where(jax.devices()[0], interpret=True)
RAGGED = Case(SMALL, "decode", "", (1, 33, 70, 128), (1, 1, 1, 1))
CHUNKS = Case(SMALL, "prefill", "", (33, 70, 128), (1, 70, 40))
PROMPTS = Case(SMALL, "prefill", "", (33, 70, 128), (33, 70, 128))
