"""Static descriptions of a model and of an engine: frozen, hashable, validated when made.

Nothing here imports more than the standard library, so the scheduler's tests need no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any

from pagedjax.values import (
    check_seed,
    finite,
    is_int,
    one_of,
    plain_list,
    plain_number,
    positive,
    positive_int,
)

ROPE_TYPES = ("default", "llama3")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "int8", "fp8")
ATTENTIONS = ("auto", "xla", "pallas", "pallas_interpret", "pallas_mosaic")


@dataclass(frozen=True)
class RopeScaling:
    """Rotary embedding frequencies (RoFormer, arXiv 2104.09864; `llama3`: arXiv 2407.21783).

    theta: base of the geometric series of wavelengths.
    rope_type: "default", or "llama3", which divides the low frequencies by `factor` and blends
        between `low_freq_factor` and `high_freq_factor` wavelengths per original context.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        one_of("rope_type", self.rope_type, ROPE_TYPES)
        positive("theta", self.theta)
        positive("factor", self.factor)
        positive_int("original_max_position_embeddings", self.original_max_position_embeddings)
        if self.rope_type == "llama3":
            low = positive("low_freq_factor", self.low_freq_factor)
            if positive("high_freq_factor", self.high_freq_factor) <= low:
                raise ValueError(
                    f"high_freq_factor={self.high_freq_factor} must be above "
                    f"low_freq_factor={self.low_freq_factor}"
                )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeScaling:
        """Read `rope_parameters` or `rope_scaling` (nested) and `rope_theta` (either place)."""
        nested = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        rope_type = nested.get("rope_type") or nested.get("type") or "default"
        if rope_type not in ROPE_TYPES:
            raise NotImplementedError(
                f"rope type {rope_type!r} is not supported yet; supported: {', '.join(ROPE_TYPES)}"
            )
        for source in (nested, config):
            if source.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise NotImplementedError(
                    f"partial_rotary_factor={source['partial_rotary_factor']} is not supported; "
                    "a LLaMA rotates the whole head"
                )
        theta = _or(_or(nested.get("rope_theta"), config.get("rope_theta")), cls.theta)
        if rope_type == "default":
            return cls(theta=positive("rope_theta", theta))
        required = (
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        )  # fmt: skip
        missing = [name for name in required if nested.get(name) is None]
        if missing:
            raise ValueError(f"rope type 'llama3' needs {', '.join(missing)} in its parameters")
        factor, low, high, original = (positive(name, nested[name]) for name in required)
        return cls(positive("rope_theta", theta), rope_type, factor, low, high, int(original))


@dataclass(frozen=True)
class ModelConfig:
    """Shape of one LLaMA-architecture model. Names follow Hugging Face, counts are `num_*`.

    Letters in the shapes of the whole project: L = num_layers, E = hidden_size, H = num_heads,
    K = num_kv_heads, G = H / K, D = head_dim, F = intermediate_size, V = vocab_size.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    model_type: str = "llama"
    rms_norm_eps: float = 1e-6
    rope: RopeScaling = RopeScaling()
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    initializer_range: float = 0.02
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
            "num_kv_heads", "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            positive_int(name, getattr(self, name))
        positive("rms_norm_eps", self.rms_norm_eps)
        object.__setattr__(self, "eos_token_ids", _eos_ids(self.eos_token_ids, self.vocab_size))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")

    @property
    def group_size(self) -> int:
        """G, the query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Make a ModelConfig from a Hugging Face `config.json` as a dict.

        `eos_token_id` of `generation_config` wins over the one of `config`, as in Hugging Face.
        Raises ValueError for a missing or impossible value and NotImplementedError for an
        architecture choice that would change the mathematics.
        """
        _refuse_other_mathematics(config)
        heads = positive_int("num_heads", _required(config, "num_attention_heads"))
        hidden = positive_int("hidden_size", _required(config, "hidden_size"))
        eos = (generation_config or {}).get("eos_token_id")
        return cls(
            model_type=config.get("model_type") or "llama",
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_required(config, "intermediate_size"),
            num_layers=_required(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_or(config.get("num_key_value_heads"), heads),
            head_dim=_or(config.get("head_dim"), hidden // heads),
            rms_norm_eps=_or(config.get("rms_norm_eps"), cls.rms_norm_eps),
            rope=RopeScaling.from_hf(config),
            max_position_embeddings=_or(
                config.get("max_position_embeddings"), cls.max_position_embeddings
            ),
            tie_word_embeddings=bool(config.get("tie_word_embeddings") or False),
            attention_bias=bool(config.get("attention_bias") or False),
            mlp_bias=bool(config.get("mlp_bias") or False),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=config.get("eos_token_id") if eos is None else eos,  # type: ignore[arg-type]
            initializer_range=_or(config.get("initializer_range"), cls.initializer_range),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


@dataclass(frozen=True)
class EngineConfig:
    """Options of an engine. `None` stands for a choice made with the engine, as follows.

    max_model_len: most tokens of prompt and output together; None: the model's own limit.
    block_size: tokens of a block of the KV pool; a power of two from 8 to 256 for Pallas.
    num_blocks: of the pool. None: as many as kv_cache_bytes holds; if that is None too, on a GPU
        what gpu_memory_utilization of its memory leaves beside what is in use and a step's
        temporaries, else max_num_seqs requests of max_model_len tokens, in 4 GiB at most.
    kv_cache_dtype: of keys and values: "auto" for that of the params, "float32", "bfloat16",
        "float16", or "int8" and "fp8" with a scale per token and kv head.
    max_num_seqs: requests that run at a time. max_num_batched_tokens: of a step; None: 512 on a
        CPU, else 2048.
    enable_prefix_caching: full blocks are found again by their tokens; None: True.
    attention: "xla", "pallas" (Triton), "pallas_mosaic", "pallas_interpret"; "auto": Pallas on GPUs
        of compute capability 8.0 and up if it takes the shapes, else XLA.
    mesh: a `jax.sharding.Mesh` with an axis `tp`; None: the device that the params are on.
    seed: what requests without a seed derive theirs from.
    compilation_cache_dir: where compiled programs are kept, by this whole process; None: nowhere,
        unless JAX is told so otherwise.
    steps_in_flight: 1 (step n+1 is scheduled before the tokens of step n are read) or 0.
    max_logprobs: bounds `SamplingParams.logprobs` and `prompt_logprobs`; the vocabulary does too.
    logprobs_mode: "raw": a sampled token's log probability is the model's own; "processed": of the
        distribution it was drawn from, after penalties, masks, temperature and filters. Prompts
        are always scored raw.
    logits_processor: a JAX function (logits [R, V], context) -> logits of the user's, traced into
        the step; see `hooks.LogitsContext`. extra: the arrays that it finds in `context.extra`, as
        they are for requests without `SamplingParams.extra`.
    batch_invariant: a request's tokens and log probabilities are the same bits alone and among
        any others, with and without prefix hits and preemption; on XLA attention alone.
    """

    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    attention: str = "auto"
    mesh: Hashable | None = None
    seed: int = 0
    compilation_cache_dir: str | PathLike[str] | None = None
    steps_in_flight: int = 1
    max_logprobs: int = 20
    logprobs_mode: str = "raw"
    logits_processor: Callable[..., Any] | None = None
    extra: Mapping[str, Any] | None = field(default=None, compare=False)
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, plain_number(getattr(self, each.name)))
        positive_int("block_size", self.block_size)
        positive_int("max_num_seqs", self.max_num_seqs)
        for name in ("max_model_len", "num_blocks", "kv_cache_bytes", "max_num_batched_tokens"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        if not 0 < finite("gpu_memory_utilization", self.gpu_memory_utilization) <= 1:
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization} must be in (0, 1]"
            )
        one_of("kv_cache_dtype", self.kv_cache_dtype, KV_DTYPES)
        one_of("attention", self.attention, ATTENTIONS)
        if not isinstance(self.enable_prefix_caching, bool | None):
            raise ValueError(
                f"enable_prefix_caching={self.enable_prefix_caching!r} must be True, False or None"
            )
        check_seed(self.seed)
        if not isinstance(self.compilation_cache_dir, str | PathLike | None):
            raise ValueError(
                f"compilation_cache_dir={self.compilation_cache_dir!r} must be a path or None"
            )
        positive_int("max_logprobs", self.max_logprobs)
        one_of("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise ValueError(f"logits_processor={self.logits_processor!r} must be callable or None")
        if self.extra and self.logits_processor is None:
            raise ValueError("extra is only read by a logits_processor, and there is none")
        if not isinstance(self.batch_invariant, bool):
            raise ValueError(f"batch_invariant={self.batch_invariant!r} must be True or False")
        if self.batch_invariant and self.attention not in ("auto", "xla"):
            raise ValueError(
                f"batch_invariant=True with attention={self.attention!r}: the kernels for decode "
                "and for prefill round differently; supported: 'xla'"
            )
        if self.steps_in_flight not in (0, 1):
            raise ValueError(f"steps_in_flight={self.steps_in_flight} must be 0 or 1")


def check_dtype(name: str, value: str) -> str:
    """Return `value` when it names a supported data type, else raise ValueError."""
    return one_of(name, value, DTYPES)


def _refuse_other_mathematics(config: Mapping[str, Any]) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise NotImplementedError(
            f"quantization_config with quant_method={method!r} cannot be read; "
            "convert an unquantised checkpoint, or a GGUF file"
        )
    if config.get("hidden_act") not in (None, "silu", "swish"):
        raise NotImplementedError(f"hidden_act={config['hidden_act']!r}; supported: 'silu'")


def _required(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise ValueError(f"the model's config has no {name!r}")
    return config[name]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _eos_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    """None, an id or a list of ids as a tuple; ValueError if one can never be drawn."""
    ids = () if given is None else plain_list([given] if is_int(plain_number(given)) else given)
    if not isinstance(ids, list | tuple) or not all(
        is_int(each) and 0 <= each < vocab_size for each in ids
    ):
        raise ValueError(
            f"eos_token_id={given!r} must be an id from 0 to {vocab_size - 1}, the vocabulary's "
            "last, a list of such ids, or null"
        )
    return tuple(ids)
