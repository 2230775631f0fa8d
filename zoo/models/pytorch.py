#!/usr/bin/env python3
"""Trains the models of `two_steps.rs` by PyTorch and transformers, from the same weights, and compares losses and weights.

    cargo run --manifest-path zoo/models/Cargo.toml -- two-steps FOLDER
    python zoo/models/pytorch.py FOLDER        # pip install torch transformers safetensors
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

TOKENS = torch.tensor([[3, 17, 8, 29, 1], [5, 5, 30, 2, 11]])
SMALL = dict(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, head_dim=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
    attention_bias=False, attn_implementation="eager",
)


def last(model):
    return model(TOKENS, use_cache=False).logits[:, -1]


def bert():
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, layer_norm_eps=1e-5, hidden_act="gelu", hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, tie_word_embeddings=False, attn_implementation="eager",
    )
    return transformers.BertForMaskedLM(config), lambda model: model(TOKENS).logits


MODELS = {
    "bert": bert,
    "gemma2": lambda: (
        transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
            **SMALL | dict(tie_word_embeddings=True), query_pre_attn_scalar=4, sliding_window=64, final_logit_softcapping=30.0,
            attn_logit_softcapping=50.0, hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
        )), last),
    "llama": lambda: (transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), last),
    "mistral": lambda: (transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, sliding_window=None)), last),
    "qwen3": lambda: (transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL)), last),
}


def main():
    folder, failed = pathlib.Path(sys.argv[1]), False
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print("| model | losses here | losses in PyTorch | largest difference of a weight |\n|---|---|---|---|")
    for name, make in MODELS.items():
        before, after, data = (load_file(folder / f"{name}.{part}") for part in ("before", "after", "data"))
        model, forward = make()
        model.eval()
        missing, unexpected = model.load_state_dict(before, strict=False)
        mine = model.state_dict()
        if unexpected:
            sys.exit(f"{name}: PyTorch's model has no {unexpected}; missing {missing}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            y = forward(model).reshape(data["target"].shape)
            loss = (y - data["target"]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        difference = max((after[key] - mine[key]).abs().max().item() for key in before)
        moved = max((after[key] - before[key]).abs().max().item() for key in before)
        theirs = [f"{loss:.6f}" for loss in data["losses"].tolist()]
        print(f"| {name} | {', '.join(theirs)} | {', '.join(f'{loss:.6f}' for loss in losses)} | {difference:.1e} of {moved:.1e} |")
        failed |= difference > 1e-5 or any(abs(a - b) > 1e-5 for a, b in zip(data["losses"].tolist(), losses))
    sys.exit("they differ" if failed else 0)


if __name__ == "__main__":
    main()
