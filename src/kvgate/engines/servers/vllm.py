"""vLLM's server: `prompt_logprobs` of `/v1/completions`, one request a text; `logprob_token_ids` for what a top lacks.

The numbers of a whole prompt are of the prefill. vLLM 0.32 leaves its prefix cache aside for them; older ones were seen
to answer from it with too few or stale rows (vllm#3914, #8268, #42019), which `_openai_lanes` looks for.
`logprob_token_ids` was seen on 0.32.0 (CPU): the named ids beside the chosen one, each with its value in a top.
Source: vLLM 0.32.0 sampling_params.py, entrypoints/openai/completion/protocol.py.
"""

from __future__ import annotations

from kvgate.core.engine import Lane, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines import _topk
from kvgate.engines.servers._server import NOT_HERE, Asks, Question, joined, lost_mass, missing_ids

#: A position is asked again, for the base's own ids, where so much of the base's mass would else be one rest. A token
#: of a text costs a whole request then, so it is not done for crumbs.
LOST_MASS = 0.01


class Vllm:
    """See the module."""

    name = "vllm"
    #: MAX_LOGPROB_TOKEN_IDS of sampling_params.py.
    asked_ids = 128

    async def score(self, ask: Asks, question: Question) -> list[TopKRow]:
        if question.lane is not Lane.PREFILL_TOPK:
            raise BadAnswer("vLLM's server takes no text to decode: it answers with its own tokens", kind=NOT_HERE)
        model = await ask.model_name()
        answer = await ask.post_json("/v1/completions", _topk.vllm_body(model, question.ids, question.k))
        rows = _topk.vllm_rows(answer, question.ids, question.start)
        for i, (row, base) in enumerate(zip(rows, question.base, strict=False)):
            if lost_mass(row, base) > LOST_MASS:
                wanted = missing_ids(row, base)[: self.asked_ids]
                body = _topk.vllm_ids_body(model, question.ids[: question.start + i], wanted)
                rows[i] = joined(row, _topk.vllm_ids_row(await ask.post_json("/v1/completions", body), wanted))
        return rows


SERVER = Vllm()
