"""Prompts for instruction-tuned models."""

from __future__ import annotations

from typing import Any


def chat_prompt(tokenizer: Any, question: str, system: str | None = None) -> str:
    """The prompt of a question by the tokenizer's chat template; the bare text if it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return f"{system}\n\n{question}" if system else question
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
