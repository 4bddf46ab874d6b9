"""LLM, the entry point for most users: a checkpoint in, completions out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from tqdm.auto import tqdm

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.convert import load_checkpoint
from pagedjax.devices.mesh import make_mesh
from pagedjax.engine import Engine
from pagedjax.engine_options import EngineOptions, engine_config
from pagedjax.intake.prompts import Prompt, listed, one_per_prompt
from pagedjax.outputs import CompletionOutput, FinishReason, RequestOutput
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request
from pagedjax.search.beam_search import BeamSearch, BeamSearchOutput
from pagedjax.step.resolved_options import settle
from pagedjax.step.scores import ScoredArrays
from pagedjax.text.chat import ChatOptions, Messages, encode_chat
from pagedjax.weights.params import Params

OnError = Literal["raise", "return"]


class LLM:
    """A model and its engine.

    model: a converted folder, a Hugging Face folder, a .gguf file, or a hub id.
    dtype: of the params: "auto", "float32", "bfloat16" or "float16".
    options: the fields of EngineConfig.

        llm = LLM("SmolLM2")
        print(llm.generate("The capital of France is")[0].outputs[0].text)
    """

    def __init__(
        self, model: str | Path, dtype: str = "auto", **options: Unpack[EngineOptions]
    ) -> None:
        config = engine_config(options)
        mesh = make_mesh(config.mesh)  # type: ignore[arg-type]

        def check(model_config: ModelConfig) -> None:  # reading the weights may take minutes
            settle(config, model_config, str(model_config.dtype), mesh.devices.flat[0])

        model_config, params, tokenizer = load_checkpoint(model, dtype, mesh, check)
        self.engine = Engine(model_config, params, config, tokenizer)
        self._numbers = itertools.count()  # safe to share between threads

    @classmethod
    def from_params(
        cls,
        model_config: ModelConfig,
        params: Params,
        tokenizer: Any = None,
        **options: Unpack[EngineOptions],
    ) -> LLM:
        """An LLM over params that are already in this process; they are not copied."""
        llm = cls.__new__(cls)
        llm.engine = Engine(model_config, params, engine_config(options), tokenizer)
        llm._numbers = itertools.count()
        return llm

    def __repr__(self) -> str:
        return f"LLM({self.engine!r})"

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Complete every prompt; the outputs are in the order of the prompts.

        prompts: one text or list of token ids, or a list of those; also vLLM's dicts with "prompt"
            or "prompt_token_ids" and an optional "cache_salt", which takes precedence over the
            one in SamplingParams.
        sampling_params: None for the defaults, one for all prompts, or one per prompt.
        on_error: all prompts are checked before any work. "raise": one ValueError lists every bad
            prompt by index with the reason. "return": valid prompts run, and the output of a bad
            one has finish_reason "error" and the message as its stop_reason.
        """
        return self._complete(
            listed(prompts), lambda prompt: prompt, sampling_params, use_tqdm, on_error
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, by the checkpoint's own chat template.

        messages: dicts with "role" and "content", which is a text or a list of text parts.
        tools to chat_template_kwargs: see `ChatOptions`. Other arguments are as in `generate`.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise TypeError(f"messages={messages!r} must be a list of dicts, or a list of those")
        options = ChatOptions(
            tools, chat_template, add_generation_prompt, continue_final_message,
            chat_template_kwargs,
        )  # fmt: skip
        one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations = [messages] if one else list(messages)
        return self._complete(
            conversations,
            lambda each: self._encode_chat(each, options),
            sampling_params,
            use_tqdm,
            on_error,
        )

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yield outputs of the params' `output_kind`; closing the iterator aborts the request."""
        request = self.engine.make_request(self._new_id(), prompt, sampling_params)
        return self._run([request])

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beam_width: int,
        max_tokens: int | None,
        length_penalty: float = 1.0,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best sequences of each prompt by beam search; see `beam_search`.

        Ends with the model's end-of-sequence ids. Raises ValueError for a prompt that `generate`
        would refuse, and for a width or penalty out of range.
        """
        search = BeamSearch(self.engine, beam_width, max_tokens, length_penalty)
        return search.run(listed(prompts))

    def compute_logprobs(
        self, token_lists: Sequence[Sequence[int]], *, return_arrays: bool = False
    ) -> list[np.ndarray] | ScoredArrays:
        """log p(token[i+1] | tokens[:i+1]) for each list: float32 arrays of length len - 1.

        return_arrays: padded device arrays instead; see `scores.ScoredArrays`.
        """
        return self.engine.compute_logprobs(token_lists, return_arrays=return_arrays)

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation by the model's template, ready for the answer; see `chat`."""
        options = ChatOptions(
            tools, chat_template, add_generation_prompt, continue_final_message,
            chat_template_kwargs,
        )  # fmt: skip
        return self._encode_chat(messages, options)

    def _encode_chat(self, messages: Messages, options: ChatOptions) -> list[int]:
        if self.engine.tokenizer is None:
            raise ValueError("chat needs a tokenizer, and the model has none")
        return encode_chat(self.engine.tokenizer, messages, options)

    def _complete(
        self,
        prompts: Sequence[Any],
        to_prompt: Callable[[Any], Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        on_error: OnError,
    ) -> list[RequestOutput]:
        if on_error not in ("raise", "return"):
            raise ValueError(f"on_error={on_error!r} is unknown; supported: 'raise', 'return'")
        requests: list[Request] = []
        outputs: dict[str, RequestOutput] = {}
        errors: dict[int, str] = {}
        ids = [self._new_id() for _ in prompts]
        for index, params in enumerate(one_per_prompt(sampling_params, len(prompts))):
            try:
                prompt = to_prompt(prompts[index])
                requests.append(self.engine.make_request(ids[index], prompt, params))
            except ValueError as error:
                errors[index] = str(error)
                outputs[ids[index]] = _ended(ids[index], "error", str(error))
        if errors and on_error == "raise":
            raise ValueError("; ".join(f"prompt {i}: {error}" for i, error in errors.items()))
        with tqdm(total=len(requests), desc="generate", unit="req", disable=not use_tqdm) as bar:
            for output in self._run(requests, every_step=False):
                if output.finished:
                    outputs[output.request_id] = output
                    bar.update()
        for request in requests:  # one that another caller aborted has no output here
            outputs.setdefault(request.id, _ended(request.id, "abort", None))
        return [outputs[each] for each in ids]

    def _run(self, requests: Sequence[Request], every_step: bool = True) -> Iterator[RequestOutput]:
        """Queue the requests and yield their outputs; outputs of other requests stay unread.

        However the iterator ends, no request of it stays in the engine.
        """
        ids = [request.id for request in requests]
        alive = set(ids)
        try:
            for request in requests:
                self.engine.queue_request(request, every_step)
            while alive:
                mine = self.engine.step_for(alive)
                alive -= {output.request_id for output in mine if output.finished}
                # A request that another caller aborts yields no last output. Looking at the last
                # one only keeps the cost of a step independent of the number of requests.
                while ids and not self.engine.is_in_use(ids[-1]):
                    alive.discard(ids.pop())
                yield from mine
        finally:
            for request_id in alive:
                self.engine.abort_request(request_id)

    def _new_id(self) -> str:
        """A request id that is not in use; other callers may have requests on this engine."""
        while True:
            name = f"llm-{next(self._numbers)}"
            if not self.engine.is_in_use(name):
                return name


def _ended(request_id: str, reason: FinishReason, why: str | None) -> RequestOutput:
    """The output of a request that generated nothing."""
    completion = CompletionOutput(
        index=0, token_ids=[], text="", delta_token_ids=[], delta_text="", finish_reason=reason,
        stop_reason=why,
    )  # fmt: skip
    return RequestOutput(request_id, prompt_token_ids=[], outputs=[completion], finished=True)
