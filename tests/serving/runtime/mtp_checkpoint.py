"""A Qwen2 folder made into one of MiMo's format, with random MTP modules, and what such a module computes, in plain torch."""

import json

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu


def add_mtp(folder, modules=1, seed=0, layer_scale=0.2) -> None:
    torch.manual_seed(seed)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    hidden = config["hidden_size"]
    config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": modules}
    path.write_text(json.dumps(config))
    held = load_file(folder / "model.safetensors")
    layer = {name: held[name] for name in held if name.startswith("model.layers.0.")}
    for number in range(modules):
        start = f"model.mtp_layers.{number}."
        for name, tensor in layer.items():
            held[name.replace("model.layers.0.", start)] = torch.randn(tensor.shape) * layer_scale + (tensor.ndim == 1)
        for name in ("token", "hidden", "final"):
            held[f"{start}{name}_layernorm.weight"] = 1 + torch.randn(hidden) * 0.2
        held[f"{start}input_proj.weight"] = torch.randn(hidden, 2 * hidden) * 0.2
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def reference(weights, config, hidden, embedded):
    """What the module gives at each of the pairs (hidden state, the token that followed), normed: [pairs, H]."""

    def norm(x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_eps)
        return x * scale * weights[f"model.mtp_layers.0.{name}.weight"]

    def product(x, name):
        start = f"model.mtp_layers.0.{name}"
        return linear(x, weights[f"{start}.weight"], weights.get(f"{start}.bias"))

    def heads(x, count):
        return x.view(len(x), count, config.head_dim).transpose(0, 1)

    def turned(x):
        half = config.head_dim // 2
        angles = torch.outer(torch.arange(x.shape[1]), config.rope.theta ** (-torch.arange(half) / half))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    x = product(torch.cat((norm(hidden, "hidden_layernorm"), norm(embedded, "token_layernorm")), dim=-1), "input_proj")
    read = norm(x, "input_layernorm")
    q = turned(heads(product(read, "self_attn.q_proj"), config.heads))
    k = turned(heads(product(read, "self_attn.k_proj"), config.kv_heads))
    v = heads(product(read, "self_attn.v_proj"), config.kv_heads)
    shared = config.heads // config.kv_heads
    k, v = k.repeat_interleave(shared, 0), v.repeat_interleave(shared, 0)
    mixed = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    x = x + product(mixed.transpose(0, 1).flatten(1), "self_attn.o_proj")
    read = norm(x, "post_attention_layernorm")
    x = x + product(silu(product(read, "mlp.gate_proj")) * product(read, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "final_layernorm")
