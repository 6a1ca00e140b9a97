"""Chat prompts."""

from pagedattn.chat import chat_prompt


class Plain:
    chat_template = None

    def encode(self, text, add_special_tokens=True):
        return ([1] if add_special_tokens else []) + list(text.encode())


class WithTemplate(Plain):
    chat_template = "some template"

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "<s>" + "".join(f"[{m['role']}]{m['content']}" for m in messages)


def test_template_brings_its_own_special_tokens():
    ids = chat_prompt(WithTemplate(), "why?", "be brief")
    assert bytes(ids).decode() == "<s>[system]be brief[user]why?"
    assert bytes(chat_prompt(WithTemplate(), "why?")).decode() == "<s>[user]why?"


def test_without_a_template_the_text_is_the_prompt():
    assert chat_prompt(Plain(), "why?", "be brief") == [1, *b"be brief\n\nwhy?"]
    assert chat_prompt(Plain(), "why?") == [1, *b"why?"]
