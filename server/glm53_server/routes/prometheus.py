"""`GET /metrics`: Prometheus text, under vLLM's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from glm53_server.metrics import Histogram
from glm53_server.service import Service, service_of

router = APIRouter(tags=["operations"])
_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> PlainTextResponse:
    """Counters and histograms since the start."""
    text = "\n".join(_lines(service_of(request))) + "\n"
    return PlainTextResponse(text, media_type=_MEDIA_TYPE)


def _lines(service: Service) -> Iterator[str]:
    engine, metrics = service.engine, service.metrics
    name = service.served_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    label = f'model_name="{name}"'
    gauges = {
        "vllm:num_requests_running": engine.running,
        "vllm:num_requests_waiting": engine.queued,
    }
    counters = {
        "vllm:prompt_tokens_total": metrics.prompt_tokens,
        "vllm:generation_tokens_total": metrics.completion_tokens,
        "vllm:prompt_tokens_cached_total": metrics.cached_tokens,
        "glm53:requests_total": metrics.requests,
        "glm53:engine_steps_total": engine.steps,
    }
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for metric, value in values.items():
            yield f"# TYPE {metric} {kind}"
            yield f"{metric}{{{label}}} {value}"
    yield "# TYPE vllm:request_success_total counter"
    for reason, count in sorted(metrics.finished.items()):
        yield f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}'
    histograms = {
        "vllm:time_to_first_token_seconds": metrics.first_token_s,
        "vllm:inter_token_latency_seconds": metrics.between_tokens_s,
        "vllm:e2e_request_latency_seconds": metrics.whole_s,
        "vllm:request_prompt_tokens": metrics.prompt_size,
        "vllm:request_generation_tokens": metrics.output_size,
    }
    for metric, histogram in histograms.items():
        yield from _histogram(metric, label, histogram)


def _histogram(metric: str, label: str, histogram: Histogram) -> Iterator[str]:
    yield f"# TYPE {metric} histogram"
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.cumulative(), strict=True):
        yield f'{metric}_bucket{{{label},le="{bound}"}} {count}'
    yield f"{metric}_sum{{{label}}} {histogram.sum}"
    yield f"{metric}_count{{{label}}} {histogram.count}"
