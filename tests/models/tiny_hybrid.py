"""Small GGUF models of hybrid architectures that the real engine loads: four blocks, weights without meaning."""

from tiny_gguf import F32, TinyGguf

WIDTH, HEADS, HEAD_DIM, FFN = 512, 8, 64, 64
#: Mamba: twice the width, as llama.cpp demands of the first generation.
INNER, STATE, GROUPS, SSM_HEADS, KERNEL = 1024, 64, 2, 16, 4
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SSM = {
    "ssm.conv_kernel": KERNEL,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": SSM_HEADS,
    "ssm.group_count": GROUPS,
}
SSM_PLAIN = {name: value for name, value in SSM.items() if name != "ssm.group_count"}
#: Kimi Delta Attention and latents.
KDA_DIM, RANK, ROPE, KEY, VALUE = 64, 96, 32, 80, 64


def tiny_hybrid(architecture, **keys):
    """Bytes of a model of four blocks; `keys` replace its metadata."""
    metadata, tensors = MODELS[architecture]()
    metadata = {
        "context_length": 4096,
        "embedding_length": WIDTH,
        "block_count": 4,
        "attention.head_count": HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": FFN,
        "rope.dimension_count": HEAD_DIM,
        "vocab_size": len(VOCABULARY),
        **metadata,
        **keys,
    }
    entries = [("general.architecture", "str", architecture), ("general.name", "str", "Tiny")]
    entries += [_entry(f"{architecture}.{name}", value) for name, value in metadata.items()]
    entries += [
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.tokens", ("array", "str"), VOCABULARY),
        ("tokenizer.ggml.scores", ("array", "f32"), [0.0] * len(VOCABULARY)),
        ("tokenizer.ggml.token_type", ("array", "i32"), [2, 3, 3] + [6] * 256),
    ]
    # LFM2 calls its last norm by another name.
    last = "token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight"
    rows = [("token_embd.weight", (WIDTH, len(VOCABULARY))), (last, (WIDTH,)), *tensors]
    return TinyGguf(entries, [(name, shape, F32) for name, shape in rows]).build()


def _entry(name, value):
    if isinstance(value, list):
        kind = "bool" if isinstance(value[0], bool) else "i32"
        return name, ("array", kind), [int(v) for v in value]
    return name, "f32" if isinstance(value, float) else "u32", value


def _named(index, **shapes):
    return [(f"blk.{index}.{name.replace('__', '.')}", shape) for name, shape in shapes.items()]


def _norm(index):
    return _named(index, attn_norm__weight=(WIDTH,))


def _attention(index, *, kv_heads=2, dim=HEAD_DIM, norms=False, gate=1):
    made = _named(
        index,
        attn_q__weight=(WIDTH, HEADS * dim * gate),
        attn_k__weight=(WIDTH, kv_heads * dim),
        attn_v__weight=(WIDTH, kv_heads * dim),
        attn_output__weight=(HEADS * dim, WIDTH),
    )
    return made + (_named(index, attn_q_norm__weight=(dim,), attn_k_norm__weight=(dim,)) if norms else [])


def _ffn(index, *, gate=True, norm="ffn_norm__weight"):
    made = _named(index, ffn_up__weight=(WIDTH, FFN), ffn_down__weight=(FFN, WIDTH))
    made += _named(index, ffn_gate__weight=(WIDTH, FFN)) if gate else []
    return made + (_named(index, **{norm: (WIDTH,)}) if norm else [])


def _mamba2(index):
    channels = INNER + 2 * GROUPS * STATE
    return _named(
        index,
        ssm_in__weight=(WIDTH, INNER + channels + SSM_HEADS),
        ssm_conv1d__weight=(KERNEL, channels),
        ssm_conv1d__bias=(channels,),
        ssm_dt__bias=(SSM_HEADS,),
        ssm_a=(1, SSM_HEADS),
        ssm_d=(1, SSM_HEADS),
        ssm_norm__weight=(INNER // GROUPS, GROUPS),
        ssm_out__weight=(INNER, WIDTH),
    )


def _mamba1(index, *, norms=False):
    rank = SSM_HEADS
    made = _named(
        index,
        ssm_in__weight=(WIDTH, 2 * INNER),
        ssm_conv1d__weight=(KERNEL, INNER),
        ssm_conv1d__bias=(INNER,),
        ssm_x__weight=(INNER, rank + 2 * STATE),
        ssm_dt__weight=(rank, INNER),
        ssm_dt__bias=(INNER,),
        ssm_a=(STATE, INNER),
        ssm_d=(INNER,),
        ssm_out__weight=(INNER, WIDTH),
    )
    if norms:
        made += _named(index, ssm_dt_norm__weight=(rank,), ssm_b_norm__weight=(STATE,), ssm_c_norm__weight=(STATE,))
    return made


def _delta_net(index):
    channels = 2 * GROUPS * STATE + INNER
    return _named(
        index,
        attn_qkv__weight=(WIDTH, channels),
        attn_gate__weight=(WIDTH, INNER),
        ssm_conv1d__weight=(KERNEL, channels),
        ssm_dt__bias=(SSM_HEADS,),
        ssm_a=(SSM_HEADS,),
        ssm_beta__weight=(WIDTH, SSM_HEADS),
        ssm_alpha__weight=(WIDTH, SSM_HEADS),
        ssm_norm__weight=(STATE,),
        ssm_out__weight=(INNER, WIDTH),
    )


def _kda(index):
    inner = HEADS * KDA_DIM
    return _named(
        index,
        **{f"ssm_conv1d_{x}__weight": (KERNEL, 1, inner) for x in "qkv"},
        attn_q__weight=(WIDTH, inner),
        attn_k__weight=(WIDTH, inner),
        attn_v__weight=(WIDTH, inner),
        ssm_f_a__weight=(WIDTH, KDA_DIM),
        ssm_f_b__weight=(KDA_DIM, inner),
        ssm_beta__weight=(WIDTH, HEADS),
        ssm_a=(1, HEADS),
        ssm_dt__bias=(inner,),
        ssm_g_a__weight=(WIDTH, KDA_DIM),
        ssm_g_b__weight=(KDA_DIM, inner),
        ssm_norm__weight=(KDA_DIM,),
        attn_output__weight=(inner, WIDTH),
    )


def _latent(index):
    return _named(
        index,
        attn_q__weight=(WIDTH, HEADS * KEY),
        attn_kv_a_norm__weight=(RANK,),
        attn_kv_a_mqa__weight=(WIDTH, RANK + ROPE),
        attn_k_b__weight=(KEY - ROPE, RANK, HEADS),
        attn_v_b__weight=(RANK, VALUE, HEADS),
        attn_output__weight=(HEADS * VALUE, WIDTH),
    )


def _blocks(make, count=4):
    return [tensor for index in range(count) for tensor in (*_norm(index), *make(index))]


def _granite():
    made = _blocks(lambda n: (_attention(n) if n == 2 else _mamba2(n)) + _ffn(n))
    scales = dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale"), 1.0)
    return {**SSM, **scales, "attention.head_count_kv": [0, 0, 2, 0]}, made


def _nemotron():
    made = _blocks(lambda n: {2: _attention, 1: lambda m: _ffn(m, gate=False, norm="")}.get(n, _mamba2)(n))
    made.append(("output.weight", (WIDTH, len(VOCABULARY))))
    return {**SSM, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, FFN, 0, 0]}, made


def _falcon_h1():
    made = _blocks(lambda n: _attention(n) + _mamba2(n) + _ffn(n, norm="ffn_norm"))
    return {**SSM, "attention.head_count_kv": 2}, made


def _mamba():
    return {**SSM_PLAIN, "attention.head_count": 0, "feed_forward_length": 0}, _blocks(_mamba1)


def _grouped_mamba():
    return {**SSM, "attention.head_count": 0, "feed_forward_length": 0}, _blocks(_mamba2)


def _jamba():
    made = _blocks(lambda n: (_attention(n) if n == 1 else _mamba1(n, norms=True)) + _ffn(n))
    return {**SSM_PLAIN, "attention.head_count_kv": [0, 2, 0, 0]}, made


def _lfm2():
    def convolution(n):
        shapes = {"conv": (3, WIDTH), "in_proj": (WIDTH, 3 * WIDTH), "out_proj": (WIDTH, WIDTH)}
        return [(f"blk.{n}.shortconv.{name}.weight", shape) for name, shape in shapes.items()]

    made = _blocks(lambda n: (_attention(n, norms=True) if n == 2 else convolution(n)) + _ffn(n))
    return {"attention.head_count_kv": [0, 0, 2, 0], "shortconv.l_cache": 3}, made


def _qwen35():
    def block(n):
        mixer = _attention(n, norms=True, gate=2) if n == 3 else _delta_net(n)
        return mixer + _ffn(n, norm="post_attention_norm__weight")

    keys = {**SSM, "attention.head_count_kv": 2, "rope.dimension_sections": [8, 8, 16, 0]}
    return keys, _blocks(block)


def _kimi():
    made = _blocks(lambda n: (_latent(n) if n == 3 else _kda(n)) + _ffn(n))
    made.append(("output.weight", (WIDTH, len(VOCABULARY))))
    keys = {
        "attention.head_count_kv": [0, 0, 0, 1],
        "attention.key_length": RANK + ROPE,
        "attention.value_length": RANK,
        "attention.key_length_mla": KEY,
        "attention.value_length_mla": VALUE,
        "attention.kv_lora_rank": RANK,
        "rope.dimension_count": ROPE,
        "ssm.conv_kernel": KERNEL,
        "kda.head_dim": KDA_DIM,
        "expert_count": 2,
        "expert_used_count": 1,
        "expert_feed_forward_length": FFN,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "leading_dense_block_count": 4,
    }
    return keys, made


def _gemma4():
    """Window, window, full; the last block reads the KV of an earlier one."""

    def block(n):
        kv_heads, dim = (1, 128) if n == 2 else (2, HEAD_DIM)
        return (
            _attention(n, kv_heads=kv_heads, dim=dim, norms=True)
            + _named(n, post_attention_norm__weight=(WIDTH,), post_ffw_norm__weight=(WIDTH,))
            + _ffn(n)
        )

    keys = {
        "attention.head_count_kv": [2, 2, 1, 2],
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.key_length_swa": HEAD_DIM,
        "attention.value_length_swa": HEAD_DIM,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [True, True, False, True],
        "attention.shared_kv_layers": 1,
        "embedding_length_per_layer_input": 0,
        "rope.dimension_count": 128,
        "rope.dimension_count_swa": HEAD_DIM,
    }
    return keys, [*_blocks(block), ("rope_freqs.weight", (64,))]


def _gemma3n():
    """22 blocks, of which the engine caches 20."""
    count, streams, rank, extra = 22, 4, 64, 256

    def block(n):
        return (
            _attention(n, norms=True)
            + _named(n, post_attention_norm__weight=(WIDTH,), post_ffw_norm__weight=(WIDTH,))
            + _ffn(n)
            + _named(
                n,
                inp_gate__weight=(WIDTH, extra),
                proj__weight=(extra, WIDTH),
                post_norm__weight=(WIDTH,),
                altup_correct_coef__weight=(streams, streams),
                altup_correct_scale__weight=(WIDTH,),
                altup_predict_coef__weight=(streams, streams * streams),
                altup_router__weight=(WIDTH, streams),
                altup_router_norm__weight=(WIDTH,),
                laurel_l__weight=(WIDTH, rank),
                laurel_r__weight=(rank, WIDTH),
                laurel_post_norm__weight=(WIDTH,),
            )
        )

    keys = {
        "block_count": count,
        "attention.head_count_kv": 2,
        "attention.sliding_window": 64,
        "attention.shared_kv_layers": 2,
        "attention.sliding_window_pattern": [(n + 1) % 5 != 0 for n in range(count)],
        "altup.active_idx": 0,
        "altup.num_inputs": streams,
        "embedding_length_per_layer_input": extra,
    }
    return keys, [
        *_blocks(block, count),
        ("altup_proj.weight", (WIDTH, WIDTH, streams - 1)),
        ("altup_unembd_proj.weight", (WIDTH, WIDTH, streams - 1)),
        ("per_layer_token_embd.weight", (extra * count, len(VOCABULARY))),
        ("per_layer_model_proj.weight", (WIDTH, extra * count)),
        ("per_layer_proj_norm.weight", (extra,)),
    ]


MODELS = {
    "granitehybrid": _granite,
    "nemotron_h": _nemotron,
    "falcon-h1": _falcon_h1,
    "mamba": _mamba,
    "mamba2": _grouped_mamba,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "qwen35": _qwen35,
    "kimi-linear": _kimi,
    "gemma4": _gemma4,
    "gemma3n": _gemma3n,
}
