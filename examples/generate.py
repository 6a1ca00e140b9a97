"""Answers a few prompts with the engine and prints what the prefix cache saved.

Run: python examples/generate.py
"""

from pagedattn import Engine, SamplingParams


def main() -> None:
    engine = Engine.from_pretrained("smollm2", num_blocks=512)
    shared = "The following is a list of short facts about animals. "
    prompts = [shared + start for start in ("A bee", "An octopus", "The blue whale")]
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=24, seed=1)
    for prompt, output in zip(prompts, engine.generate(prompts, params), strict=True):
        print(f"{prompt}|{output.outputs[0].text}")
    print(f"prefix cache hit rate: {engine.metrics.prefix_cache_hit_rate:.0%}")


if __name__ == "__main__":
    main()
