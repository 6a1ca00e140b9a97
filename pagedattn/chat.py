"""Prompts for instruction-tuned models."""

from __future__ import annotations

from typing import Any


def chat_prompt(tokenizer: Any, question: str, system: str | None = None) -> list[int]:
    """Token ids of a question by the tokenizer's chat template; of the bare text without one."""
    if not getattr(tokenizer, "chat_template", None):
        ids: list[int] = tokenizer.encode(f"{system}\n\n{question}" if system else question)
        return ids
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # The template has written the special tokens already.
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids
