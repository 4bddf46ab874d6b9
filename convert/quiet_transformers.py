"""Importing `transformers` without its advice to install PyTorch, which tokenizers do not need."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType


def import_transformers() -> ModuleType:
    """Import `transformers`; its warnings stay, except that PyTorch was not found.

    The advice concerns models, and only tokenizers are used here. Importing takes seconds, and a
    model without a tokenizer does not need it.
    """
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_not_advice)
    try:
        return importlib.import_module("transformers")
    finally:
        logger.removeFilter(_is_not_advice)


def _is_not_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")
