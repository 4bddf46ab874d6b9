"""pagedjax: paged, continuously batched LLM inference as a functional JAX engine."""

from pagedjax.config import EngineConfig, ModelConfig, RopeScaling
from pagedjax.convert import load_checkpoint
from pagedjax.engine import Engine
from pagedjax.llm import LLM
from pagedjax.models import init_params
from pagedjax.outputs import CompileReport, CompletionOutput, EngineStats, Logprob, RequestOutput
from pagedjax.sampling_params import SamplingParams
from pagedjax.search.beam_search import BeamSearchOutput, BeamSequence
from pagedjax.version import __version__

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSequence",
    "CompileReport",
    "CompletionOutput",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "Logprob",
    "ModelConfig",
    "RequestOutput",
    "RopeScaling",
    "SamplingParams",
    "__version__",
    "init_params",
    "load_checkpoint",
]
