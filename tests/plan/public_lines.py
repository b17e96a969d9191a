"""Lines as people pasted them into public reports, of versions from 2023 to 2026, and what each says."""

from __future__ import annotations

from kvgate.core.units import GIB_BYTES, MIB_BYTES

BLOCKS = "INFO kv_cache_utils.py:395] # GPU blocks: {}\nMaximum concurrency for {} tokens per request: {}x\n"

#: name -> (lines, engine, tokens, bytes of the cache of a rank)
PUBLIC = {
    # vllm pull request 12569: 1,381 blocks, and 10.79 sequences of 2,048 tokens: blocks of 16.
    "vllm-0.7": (BLOCKS.format(1381, 2048, "10.79"), "vllm", 22_096, None),
    # One sequence takes 2,048 of 21 times more, so that the block is 32.
    "vllm-0.7-block-32": (BLOCKS.format(1344, 2048, "21.00"), "vllm", 43_008, None),
    # vllm issue 21348: two lines without a time, a process or a file before them.
    "vllm-two-lines": (
        "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens\n",
        "vllm",
        178_880,
        round(8.11 * GIB_BYTES),
    ),
    "vllm-data-parallel": (
        "(EngineCore_DP0 pid=10) INFO [kv_cache_utils.py:849] GPU KV cache size: 205,744 tokens\n"
        "(EngineCore_DP1 pid=11) INFO [kv_cache_utils.py:849] GPU KV cache size: 205,728 tokens\n",
        "vllm",
        205_728,
        None,
    ),
    "vllm-npu": ("INFO [kv_cache_utils.py:864] NPU KV cache size: 197632 tokens\n", "vllm", 197_632, None),
    "vllm-hpu": (
        "# HPU blocks: 2048, # CPU blocks: 512\nMaximum concurrency for 4096 tokens per request: 64.00x\n",
        "vllm",
        262_144,
        None,
    ),
    "vllm-0.6.4": (
        "INFO worker.py:232] Memory profiling results: total_gpu_memory=7.92GiB initial_memory_usage=0.37GiB "
        "peak_torch_memory=0.71GiB memory_usage_post_profile=0.39GiB non_torch_memory=0.15GiB kv_cache_size=6.27GiB "
        "gpu_memory_utilization=0.90\n" + BLOCKS.format("11422, # CPU blocks: 7281", 2048, "89.23"),
        "vllm",
        182_752,
        round(6.27 * GIB_BYTES),
    ),
    "vllm-v0-too-small": (
        "ValueError: The model's max seq len (262144) is larger than the maximum number of tokens that can be stored "
        "in KV cache (47328). Try increasing `gpu_memory_utilization`\n",
        "vllm",
        47_328,
        None,
    ),
    "sglang-2024": (
        "Rank 0: max_total_num_token=115621, max_prefill_num_token=19270, context_len=4096, \n",
        "sglang",
        115_621,
        None,
    ),
    # TensorRT-LLM issue 1400: 524,288 bytes a token, which is Llama-2-7B in float16.
    "trtllm-0.8": (
        "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
        "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n",
        "trtllm",
        132_608,
        69_524_783_104,
    ),
    "trtllm-estimated": (
        "[TRT-LLM] [I] Estimated max memory in KV cache : 9.06 GiB\n"
        "[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 65 [window size=2049], tokens per block=32, primary "
        "blocks=13189, max sequence length=2049\n",
        "trtllm",
        422_048,
        round(9.06 * GIB_BYTES),
    ),
    # Two pools: layers with a window of 128 tokens have 1,365 blocks, those that see all have 22,000.
    "trtllm-two-windows": (
        "".join(
            f"[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 4 [window size={window}], tokens per block=32, "
            f"primary blocks={blocks}, secondary blocks=0\n"
            for window, blocks in ((131_072, 22_000), (128, 1_365))
        ),
        "trtllm",
        704_000,
        None,
    ),
    "llama.cpp-2023": ("llama_init_from_file: kv self size  =  400.00 MB\n", "llama_cpp", None, 400 * MIB_BYTES),
    # llama.cpp issue 27680, from a page that swallowed the escape characters; V is stored within K.
    "llama.cpp-colours": (
        "[34m1.14.610.021[0m [32mI [0mllama_kv_cache:      CUDA0 KV buffer size =   182.75 MiB\n"
        "[34m1.14.623.585[0m [32mI [0mllama_kv_cache: size =  182.75 MiB (  4352 cells,  43 layers,  1/1 seqs), "
        "K (bf16):  182.75 MiB, V (bf16):    0.00 MiB\n",
        "llama_cpp",
        4352,
        round(182.75 * MIB_BYTES),
    ),
    "ik_llama-latent": (
        "llama_new_context_with_model: KV self size  = 5833.12 MiB, c^KV (q8_0): 5833.12 MiB, kv^T: not used\n",
        "llama_cpp",
        None,
        round(5833.12 * MIB_BYTES),
    ),
    # Two divisions were tried, and the second one is loaded.
    "ollama-own-engine": (
        'level=DEBUG source=device.go:217 msg="kv cache" device=CUDA0 size="3.0 GiB"\n'
        'level=DEBUG source=device.go:217 msg="kv cache" device=CUDA0 size="1.5 GiB"\n'
        'level=DEBUG source=device.go:222 msg="kv cache" device=CPU size="512.0 MiB"\n',
        "llama_cpp",
        None,
        2 * GIB_BYTES,
    ),
    # A trial with a second device that the loaded division does not use.
    "ollama-own-engine-fewer-devices": (
        'level=DEBUG source=device.go:217 msg="kv cache" device=CUDA0 size="1.0 GiB"\n'
        'level=DEBUG source=device.go:222 msg="kv cache" device=CPU size="1.0 GiB"\n'
        'level=DEBUG source=device.go:217 msg="kv cache" device=CUDA0 size="2.0 GiB"\n',
        "llama_cpp",
        None,
        2 * GIB_BYTES,
    ),
}
