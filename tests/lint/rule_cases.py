"""For every rule that is not a row of facts: a text that fires it, and one next to it that does not."""

from __future__ import annotations

from kvgate.lint.judged import Judged

V = "vllm serve Qwen/Qwen3-32B --kv-cache-dtype "
STORED = (
    "Using {} data type to store kv cache. It reduces the GPU memory footprint and boosts the performance. "
    "Meanwhile, it may cause accuracy drop without a proper scaling factor\n"
)
S = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --kv-cache-dtype "
D4 = "sglang serve --model-path deepseek-ai/DeepSeek-V4 --kv-cache-dtype "
L = "llama-server -m x.gguf "


def case(text, **options):
    return text, options


#: id -> (fires, near miss)
CASES = {
    "checkpoint-unread": (
        case("vllm serve {damaged} --kv-cache-dtype fp8"),
        case("vllm serve {scheme} --kv-cache-dtype fp8"),
    ),
    "flag-misspelled": (case("vllm serve x --kv-cache-dtyp fp8"), case("vllm serve x --kv-events-config {}")),
    "flag-of-another-engine": (case("vllm serve x --cache-type-k q8_0"), case(L + "--cache-type-k q8_0")),
    "flag-shortened": (
        case("python -m sglang.launch_server --model-path x --kv-cache-d fp8_e4m3"),
        case("python -m sglang.launch_server --model-path x --tp 8 --kv-cache-dtype fp8_e4m3"),
    ),
    "flag-twice": (case(V + "fp8 --kv-cache-dtype fp8_e5m2"), case(V + "fp8 --max-model-len 100")),
    "flag-underscores": (
        case("python -m sglang.launch_server --model-path x --kv_cache_dtype fp8_e4m3"),
        case("vllm serve x --kv_cache_dtype fp8_e4m3"),
    ),
    "fp8-old-cuda": (case(f"CUDA_VERSION=11.7.1 {V}fp8"), case(f"CUDA_VERSION=11.8.0 {V}fp8")),
    "kv-dtype-case": (case(L + "-ctk Q8_0"), case("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=Q8_0 ollama serve")),
    "line-not-continued": (
        case("vllm serve x \\ \n  --kv-cache-dtype fp8"),
        case("vllm serve x \\\n  --kv-cache-dtype fp8"),
    ),
    "kv-dtype-unknown": (case(V + "fp8_e4m4"), case(V + "fp8_e4m3")),
    "llama-before-rotation": (
        case(L + "-fa on -ctk q8_0", engine_version="b8000"),
        case(L + "-fa on -ctk q8_0", engine_version="b8643"),
    ),
    "llama-cpu-mixed-types": (
        case(L + "-ctk q8_0 -fa on", device="cpu"),
        case(L + "-ctk q8_0 -ctv q8_0 -fa on", device="cpu"),
    ),
    "llama-cuda-pair": (
        case(L + "-ctk q5_1 -ctv q5_1 -fa on", device="rtx4090", engine_version="b10875"),
        case(L + "-ctk q8_0 -ctv q8_0 -fa on", device="rtx4090", engine_version="b10875"),
    ),
    "llama-equals-sign": (case(L + "--cache-type-k=q8_0"), case("vllm serve x --kv-cache-dtype=fp8")),
    "llama-flash-attention-value": (
        case(L + "-fa -ctk q8_0", engine_version="b11434"),
        case(L + "-fa -ctk q8_0", engine_version="b6300"),
    ),
    "llama-fp4-not-listed": (case(L + "-ctk mxfp4"), case(L + "-ctk iq4_nl")),
    "llama-fp8-build": (case(L + "-ctk fp8", engine_version="b11549"), case(L + "-ctk q8_0", engine_version="b11549")),
    "llama-grok-flash-attention": (
        case("llama-server -m grok-2.gguf -ctk q8_0 -ctv q8_0 -fa on"),
        case("llama-server -m grok-2.gguf -ctk q8_0 -fa on"),
    ),
    "llama-head-not-block": (case(L + "-ctk q8_0", model="{head80}"), case(L + "-ctk q8_0", model="{head64}")),
    "llama-mla-one-type": (
        case(L + "-ctk q8_0", model="deepseek-ai/DeepSeek-V3"),
        case(L + "-ctk q8_0 -ctv q8_0 -fa on", model="deepseek-ai/DeepSeek-V3"),
    ),
    "llama-no-cuda-kernel": (case(L + "-ctk iq4_nl", device="rtx4090"), case(L + "-ctk iq4_nl", device="cpu")),
    "llama-not-rotated": (case(L + "-ctk q8_0", model="{head80}"), case(L + "-ctk q8_0", model="{head64}")),
    "llama-q8-1-aborts": (case(L + "-ctk q8_1"), case(L + "-ctk q8_0")),
    "llama-rotation-disabled": (
        case(f"LLAMA_ATTN_ROT_DISABLE=1 {L}-ctk q8_0"),
        case(f"LLAMA_ATTN_ROT_DISABLE=0 {L}-ctk q8_0"),
    ),
    "llama-split-tensor": (case(L + "-ctk q8_0 --split-mode tensor"), case(L + "-ctk q8_0 --split-mode layer")),
    "llama-turboquant-mainline": (case(L + "-ctk turbo4"), case(V + "turboquant_4bit_nc")),
    "llama-v-needs-flash-attention": (case(L + "-ctv q8_0 -fa off"), case(L + "-ctk q8_0 -fa off")),
    "lmdeploy-fp8-backend": (
        case("lmdeploy serve api_server x --quant-policy fp8 --backend turbomind"),
        case("lmdeploy serve api_server x --quant-policy 8 --backend turbomind"),
    ),
    "lmdeploy-quant-policy": (
        case("lmdeploy serve api_server x --quant-policy 6"),
        case("lmdeploy serve api_server x --quant-policy 4"),
    ),
    "log-backend-differs": (
        case(
            V + "fp8 --attention-backend FLASH_ATTN",
            log="INFO Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']\n",
        ),
        case(
            V + "fp8 --attention-backend FLASH_ATTN",
            log="INFO Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']\n",
        ),
    ),
    "log-dtype-differs": (
        case(
            V + "fp8_e5m2",
            log=STORED.format("fp8_e4m3"),
        ),
        case(
            V + "fp8_e4m3",
            log=STORED.format("fp8"),
        ),
    ),
    "log-fa3-fallback": (
        case(
            S + "fp8_e5m2",
            log="FlashAttention3 only supports fp8_e4m3 if using FP8; Setting attention backend to triton.\n",
        ),
        case(S + "fp8_e4m3", log="Attention backend not specified. Use fa3 backend by default.\n"),
    ),
    "log-flash-attention-off": (
        case(L + "-ctk q8_0", log="W llama_context: Flash Attention not supported, set to disabled\n"),
        case(L + "-ctk q8_0", log="llama_context: flash_attn    = enabled\n"),
    ),
    "log-of-another-engine": (
        case(V + "fp8", log="llama_context: flash_attn    = enabled\n"),
        case(L + "-ctk q8_0", log="llama_kv_cache: n_rot_k = 64, n_embd_head_k_all = 64\n"),
    ),
    "log-pair-not-compiled": (
        case(
            L,
            log="no FlashAttention vector kernel compiled for K/V types q5_1-q5_1, converting K and V\n",
        ),
        case(L, log="llama_context: flash_attn    = enabled\n"),
    ),
    "log-rotation-differs": (
        case(L + "-ctk q8_0", model="{head64}", log="llama_kv_cache: n_rot_k = 0, n_embd_head_k_all = 64\n"),
        case(L + "-ctk q8_0", model="{head64}", log="llama_kv_cache: n_rot_k = 64, n_embd_head_k_all = 64\n"),
    ),
    "log-rotation-off": (
        case(L + "-ctk q8_0", log="llama_kv_cache: attention rotation force disabled (LLAMA_ATTN_ROT_DISABLE)\n"),
        case(L + "-ctk q8_0", log="llama_kv_cache: n_rot_k = 64, n_embd_head_k_all = 64\n"),
    ),
    "log-scales-dropped": (
        case(
            V + "fp8",
            log="Found k_scale in the checkpoint (e.g. x), but not found the expected name in the model\n",
        ),
        case(V + "fp8", log="INFO model loaded\n"),
    ),
    "log-scales-false-alarm": (
        case(
            S + "fp8_e4m3",
            model="{modelopt_fp8}",
            log="Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.\n",
        ),
        case(
            S + "fp8_e4m3",
            model="{dense_file}",
            log="Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.\n",
        ),
    ),
    "log-scales-file-failed": (
        case(
            S + "fp8_e4m3",
            log="Defaulting to KV cache scaling factors = 1.0 for all layers in TP rank 0\n",
        ),
        case(S + "fp8_e4m3", log="Loaded KV cache scaling factors from x\n"),
    ),
    "log-unit-scales": (
        case(V + "fp8_e4m3", log="Using KV cache scaling factor 1.0 for fp8_e4m3. This may cause accuracy issues.\n"),
        case(V + "fp8_e4m3", log="INFO model loaded\n"),
    ),
    "modelopt-affine": (
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat fp8_affine"),
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat fp8"),
    ),
    "modelopt-cast": (
        case("python hf_ptq.py --qformat fp8"),
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat fp8"),
    ),
    "modelopt-format": (
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat int8"),
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat nvfp4"),
    ),
    "modelopt-kv-only": (
        case("python hf_ptq.py --qformat none --kv_cache_qformat fp8"),
        case("python hf_ptq.py --qformat fp8 --kv_cache_qformat fp8"),
    ),
    "no-valid-verdict": (
        case(V + "fp8", judged=(Judged("qwen3-32b", "vllm", "fp8_e5m2", "PASS"),)),
        case(V + "fp8", judged=(Judged("qwen3-32b", "vllm", "fp8_e4m3/keep=L0", "PASS"),)),
    ),
    "ollama-flash-attention": (
        case("OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve"),
        case("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve"),
    ),
    "ollama-kv-type": (
        case("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q5_1 ollama serve"),
        case("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q4_0 ollama serve"),
    ),
    "memory-share": (
        case(V + "fp8 --gpu-memory-utilization 95"),
        case(V + "fp8 --gpu-memory-utilization 0.95"),
    ),
    "one-kv-type-many-models": (
        case("vllm serve a/b --kv-cache-dtype fp8\nvllm serve c/d --kv-cache-dtype fp8"),
        case("vllm serve a/b --kv-cache-dtype fp8\nvllm serve a/b --kv-cache-dtype fp8"),
    ),
    "scales-affine": (case("vllm serve {affine}"), case("vllm serve {affine} --kv-cache-dtype bfloat16")),
    "scales-fused": (case("vllm serve {fused}"), case("vllm serve {scheme}")),
    "scales-large": (case("vllm serve {large}"), case("vllm serve {half}")),
    "scales-missing": (case("vllm serve {missing}"), case("vllm serve {one_side}")),
    "scales-name": (case("vllm serve {wrong_name}"), case("vllm serve {hyv3_name}")),
    "scales-negative": (case("vllm serve {negative}"), case("vllm serve {scheme}")),
    "scales-not-finite": (case("vllm serve {nan}"), case("vllm serve {scheme}")),
    "scales-one-side": (case("vllm serve {one_side}"), case("vllm serve {fused}")),
    "scales-shape": (case("vllm serve {per_head_wrong}"), case("vllm serve {per_head}")),
    "scales-silently-unit": (
        case("vllm serve {dense_file} --kv-cache-dtype fp8"),
        case("vllm serve {dense_file} --kv-cache-dtype bfloat16"),
    ),
    "scales-tiny": (case("vllm serve {tiny}"), case("vllm serve {scheme}")),
    "scales-unit": (case("vllm serve {unit}"), case("vllm serve {unit_one}")),
    "scales-zero": (case("vllm serve {zero}"), case("vllm serve {scheme}")),
    "scales-zero-point": (case("vllm serve {zero_point}"), case("vllm serve {zero_point_0}")),
    "sglang-auto-follows-checkpoint": (
        case("sglang serve --model-path {modelopt_fp8}"),
        case("sglang serve --model-path {scheme}"),
    ),
    "sglang-backend-not-pinned": (case(S + "fp8_e4m3"), case(S + "fp8_e4m3 --attention-backend fa3")),
    "sglang-fp4-e2m1": (case(S + "fp4_e2m1"), case(S + "fp4_mx_block16")),
    "sglang-int8-kv-cache-flag": (case("sglang serve --model-path x --int8-kv-cache"), case(S + "fp8_e4m3")),
    "sglang-mx4-backend": (
        case(S + "fp4_mx_block16 --attention-backend fa3"),
        case(S + "fp4_mx_block16 --attention-backend triton"),
    ),
    "sglang-mxfp8-backend": (case(S + "mxfp8 --attention-backend fa3"), case(S + "mxfp8 --attention-backend fa4")),
    "sglang-nvfp4-backend": (
        case(S + "nvfp4 --decode-attention-backend flashinfer"),
        case(S + "nvfp4 --decode-attention-backend trtllm_mha --prefill-attention-backend flashinfer"),
    ),
    "sglang-nvfp4-lmcache": (case(S + "nvfp4 --enable-lmcache"), case(S + "fp8_e4m3 --enable-lmcache")),
    "sglang-nvfp4-mla": (case(S + "nvfp4", model="deepseek-ai/DeepSeek-V3"), case(S + "nvfp4")),
    "sglang-nvfp4-speculation": (
        case(S + "nvfp4 --speculative-algorithm STANDALONE"),
        case(S + "nvfp4 --speculative-algorithm EAGLE3"),
    ),
    "sglang-deepseek-v4-packed": (case(D4 + "bfloat16"), case(D4 + "fp8_e4m3")),
    "sglang-deepseek-v4-word": (case(D4 + "bf16"), case(D4 + "bfloat16")),
    "sglang-e5m2-split-fa3": (
        case(S + "fp8_e5m2 --decode-attention-backend fa3"),
        case(S + "fp8_e4m3 --decode-attention-backend fa3"),
    ),
    "sglang-fa3-accumulation": (
        case(S + "fp8_e4m3 --attention-backend fa3 --context-length 131072", device="h100"),
        case(S + "fp8_e4m3 --attention-backend fa3 --context-length 32768", device="h100"),
    ),
    "sglang-fp4-cuda-only": (case(S + "fp4_mx_block16", device="mi300x"), case(S + "fp4_mx_block16", device="h100")),
    "sglang-fp4-old-cuda": (
        case("docker run lmsysorg/sglang:v0.5.23-cu126 --model-path x --kv-cache-dtype nvfp4"),
        case("docker run lmsysorg/sglang:v0.5.23-cu129 --model-path x --kv-cache-dtype nvfp4"),
    ),
    "sglang-fp4-unified-memory": (case(S + "nvfp4 --enable-unified-memory"), case(S + "nvfp4")),
    "sglang-sparse-mla-auto": (
        case("sglang serve --model-path deepseek-ai/DeepSeek-V3.2", device="b200"),
        case("sglang serve --model-path deepseek-ai/DeepSeek-V3.2", device="h100"),
    ),
    "sglang-sparse-mla-sinks": (case(S + "fp8_e4m3", model="{dsa_sinks}"), case(S + "bf16", model="{dsa_sinks}")),
    "sglang-sparse-mla-word": (
        case(S + "fp8_e5m2", model="deepseek-ai/DeepSeek-V3.2"),
        case(S + "bf16", model="deepseek-ai/DeepSeek-V3.2"),
    ),
    "sglang-trtllm-mla-word": (
        case(S + "bfloat16 --decode-attention-backend trtllm_mla", model="deepseek-ai/DeepSeek-V3"),
        case(S + "bf16 --decode-attention-backend trtllm_mla", model="deepseek-ai/DeepSeek-V3"),
    ),
    "sglang-per-head-scales": (
        case("sglang serve --model-path {per_head} --kv-cache-dtype fp8_e4m3"),
        case("sglang serve --model-path {per_head} --kv-cache-dtype bf16"),
    ),
    "sglang-prefill-dequant": (
        case(S + "fp8_e4m3 --prefill-kv-cache-dequant-dtype fp8_e4m3"),
        case(S + "nvfp4 --prefill-kv-cache-dequant-dtype fp8_e4m3"),
    ),
    "sglang-scales-double": (
        case("sglang serve --model-path {scheme} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
        case("sglang serve --model-path {dense_file} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
    ),
    "sglang-scales-dtype": (case("{dtype_json}"), case("{good_json}")),
    "sglang-scales-family": (
        case("sglang serve --model openai/gpt-oss-20b --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
    ),
    "sglang-scales-layers": (case("{layers_json}", model="{dense}"), case("{good_json}", model="{dense}")),
    "sglang-scales-model-type": (case("{no_type_json}"), case("{good_json}")),
    "sglang-scales-not-applied": (
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
        case("{good_json}"),
    ),
    "sglang-scales-not-e4m3": (
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e5m2 --quantization-param-path {good_json}"),
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
    ),
    "sglang-scales-ranks": (case("{rank_json}"), case("{good_json}")),
    "sglang-scales-unreadable": (
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e4m3 --quantization-param-path nowhere.json"),
        case("sglang serve --model-path {dense} --kv-cache-dtype fp8_e4m3 --quantization-param-path {good_json}"),
    ),
    "sglang-scales-values": (case("{zero_json}"), case("{good_json}")),
    "sglang-trtllm-mha-on-mla": (
        case(S + "fp8_e4m3 --attention-backend trtllm_mha", model="deepseek-ai/DeepSeek-V3"),
        case(S + "fp8_e4m3 --attention-backend trtllm_mla", model="deepseek-ai/DeepSeek-V3"),
    ),
    "tp-replicates-heads": (case("vllm serve {dense} -tp 4"), case("vllm serve {dense} -tp 2")),
    "trtllm-auto-follows-checkpoint": (case("trtllm-serve {modelopt_nvfp4}"), case("trtllm-serve {dense}")),
    "trtllm-cli-option": (case("trtllm-serve x --kv_cache_dtype fp8"), case("trtllm-serve x --tp_size 2")),
    "trtllm-nvfp4-checkpoint": (
        case("trtllm-serve {dense} --kv_cache_dtype nvfp4"),
        case("trtllm-serve {modelopt_nvfp4} --kv_cache_dtype nvfp4"),
    ),
    "trtllm-sixteen-bits": (
        case("trtllm-serve x --kv_cache_dtype bfloat16"),
        case("trtllm-serve x --kv_cache_dtype auto"),
    ),
    "value-not-readable": (
        case("vllm serve x --kv-cache-dtype $KV"),
        case("KV=fp8\nvllm serve x --kv-cache-dtype $KV"),
    ),
    "version-not-read": (case(V + "fp8", engine_version="0.99.0"), case(V + "fp8", engine_version="0.32.0")),
    "vllm-auto-follows-checkpoint": (
        case("vllm serve {scheme} --kv-cache-dtype auto"),
        case("vllm serve {scheme} --kv-cache-dtype bfloat16"),
    ),
    "vllm-backend-device": (
        case(V + "fp8 --attention-backend FLASH_ATTN", device="rtx4090"),
        case(V + "fp8 --attention-backend FLASH_ATTN", device="h100"),
    ),
    "vllm-backend-dtype": (
        case(V + "fp8 --attention-backend HPC_ATTN"),
        case(V + "fp8_e4m3 --attention-backend HPC_ATTN"),
    ),
    "vllm-backend-head-size": (
        case("vllm serve {head80} --attention-backend FLASHINFER"),
        case("vllm serve {head64} --attention-backend FLASHINFER"),
    ),
    "vllm-backend-mla": (
        case("vllm serve deepseek-ai/DeepSeek-V3 --attention-backend FLASHINFER"),
        case("vllm serve deepseek-ai/DeepSeek-V3 --attention-backend FLASHMLA"),
    ),
    "vllm-backend-per-head-scales": (
        case("vllm serve {per_head} --attention-backend FLASHINFER"),
        case("vllm serve {per_head} --attention-backend FLASH_ATTN"),
    ),
    "vllm-backend-sinks": (
        case("vllm serve openai/gpt-oss-20b --attention-backend FLEX_ATTENTION"),
        case("vllm serve openai/gpt-oss-20b --attention-backend TRITON_ATTN"),
    ),
    "vllm-backend-unknown": (
        case("vllm serve x --attention-backend FLASH_ATN"),
        case("vllm serve x --attention-backend FLASH_ATTN"),
    ),
    "vllm-backend-variable": (
        case("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve x"),
        case("VLLM_LOGGING_LEVEL=DEBUG vllm serve x"),
    ),
    "vllm-backend-windows": (
        case("vllm serve openai/gpt-oss-20b --attention-backend HPC_ATTN"),
        case("vllm serve Qwen/Qwen3-32B --attention-backend HPC_ATTN"),
    ),
    "vllm-block-size": (
        case(V + "fp8 --attention-backend FLASHINFER --block-size 48"),
        case(V + "fp8 --attention-backend FLASHINFER --block-size 32"),
    ),
    "vllm-blocks-override": (case("vllm serve x --num-gpu-blocks-override 100"), case("vllm serve x --block-size 16")),
    "vllm-calculate-kv-scales": (case(V + "fp8 --calculate-kv-scales"), case(V + "fp8")),
    "vllm-ds-mla-model": (
        case(V + "fp8_ds_mla"),
        case("vllm serve deepseek-ai/DeepSeek-V3.2 --kv-cache-dtype fp8_ds_mla"),
    ),
    "vllm-e4m3-falls-to-triton": (
        case("vllm serve {head80} --kv-cache-dtype fp8", device="a100-80gb"),
        case("vllm serve {head64} --kv-cache-dtype fp8", device="a100-80gb"),
    ),
    "vllm-e5m2-fp8-checkpoint": (
        case("vllm serve {fp8} --kv-cache-dtype fp8_e5m2"),
        case("vllm serve {gptq} --kv-cache-dtype fp8_e5m2"),
    ),
    "vllm-e5m2-leaves-flash-attention": (case(V + "fp8_e5m2"), case(V + "fp8_e5m2 --attention-backend FLASHINFER")),
    "vllm-fa3-one-accumulator": (
        case(V + "fp8 --max-model-len 131072", device="h100", engine_version="0.10.2"),
        case(V + "fp8 --max-model-len 131072", device="h100", engine_version="0.19.1"),
    ),
    "vllm-fnuz-compressed-tensors": (
        case("vllm serve {scheme} --kv-cache-dtype fp8", device="mi300x"),
        case("vllm serve {scheme} --kv-cache-dtype fp8", device="mi355x"),
    ),
    "vllm-hybrid-manager-off": (
        case("vllm serve openai/gpt-oss-20b --disable-hybrid-kv-cache-manager"),
        case("vllm serve {dense} --disable-hybrid-kv-cache-manager"),
    ),
    "vllm-kernel-changes": (case(V + "fp8", device="a100-80gb"), case(V + "fp8", device="h100")),
    "vllm-kv-bytes-void-fraction": (
        case("vllm serve x --kv-cache-memory-bytes 1000 --gpu-memory-utilization 0.5"),
        case("vllm serve x --kv-cache-memory-bytes 1000"),
    ),
    "vllm-kv-scheme-not-taken": (case("vllm serve {scheme_int}"), case("vllm serve {scheme}")),
    "vllm-modelopt-kv-only": (case("vllm serve {modelopt_kv_only}"), case("vllm serve {modelopt_fp8}")),
    "vllm-no-backend": (case(V + "nvfp4_4over6", device="h100"), case(V + "nvfp4_4over6", device="b200")),
    "vllm-nvfp4-mla": (case("vllm serve deepseek-ai/DeepSeek-V3 --kv-cache-dtype nvfp4"), case(V + "nvfp4")),
    "vllm-nvfp4-uneven-heads": (
        case("vllm serve {uneven} --kv-cache-dtype nvfp4"),
        case("vllm serve {dense} --kv-cache-dtype nvfp4"),
    ),
    "vllm-plain-int8": (case(V + "int8"), case(V + "int8_per_token_head")),
    "vllm-platform-word": (case(V + "nvfp4", device="mi300x"), case(V + "fp8_per_token_head", device="mi300x")),
    "vllm-turboquant-named": (
        case(V + "turboquant_4bit_nc --attention-backend TURBOQUANT"),
        case(V + "turboquant_4bit_nc"),
    ),
    "vllm-scale-warning-word": (case(V + "fp8_e4m3", device="h100"), case(V + "fp8", device="h100")),
    "vllm-skip-layers-comma": (
        case(V + "fp8 --kv-cache-dtype-skip-layers 0,1"),
        case(V + "fp8 --kv-cache-dtype-skip-layers 0 1"),
    ),
    "vllm-skip-layers-costs": (
        case("vllm serve google/gemma-4-E2B --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"),
        case("vllm serve openai/gpt-oss-20b --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"),
    ),
    "vllm-skip-layers-index": (
        case("vllm serve {dense} --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 2"),
        case("vllm serve {dense} --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 1"),
    ),
    "vllm-skip-layers-mla": (
        case("vllm serve deepseek-ai/DeepSeek-V3 --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"),
        case("vllm serve deepseek-ai/DeepSeek-V3 --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0"),
    ),
    "vllm-skip-layers-no-dtype": (
        case("vllm serve x --kv-cache-dtype-skip-layers 0"),
        case(V + "fp8 --kv-cache-dtype-skip-layers 0"),
    ),
    "vllm-skip-layers-no-windows": (
        case(V + "fp8 --kv-cache-dtype-skip-layers sliding_window"),
        case(V + "fp8 --kv-cache-dtype-skip-layers 0"),
    ),
    "vllm-skip-layers-word": (
        case(V + "fp8 --kv-cache-dtype-skip-layers full_attention"),
        case(V + "fp8 --kv-cache-dtype-skip-layers sliding_window"),
    ),
    "vllm-sparse-mla-word": (
        case("vllm serve deepseek-ai/DeepSeek-V3.2 --kv-cache-dtype fp8_e4m3", device="h100"),
        case("vllm serve deepseek-ai/DeepSeek-V3.2 --kv-cache-dtype fp8", device="h100"),
    ),
}

_GOOD = {"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0.02, "1": 0.03}}}}


def _changed(**cache):
    return {**_GOOD, "kv_cache": {**_GOOD["kv_cache"], **cache}}


#: Files that cases name.
FILES = {
    "good_json": _GOOD,
    "no_type_json": {"kv_cache": _GOOD["kv_cache"]},
    "dtype_json": _changed(dtype="float8_e4m3fnuz"),
    "rank_json": _changed(scaling_factor={"rank0": {"0": 0.02, "1": 0.03}}),
    "layers_json": _changed(scaling_factor={"0": {"0": 0.02}}),
    "zero_json": _changed(scaling_factor={"0": {"0": 0.02, "1": 0}}),
}
