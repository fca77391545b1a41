"""`/health`, `/stats`, `/server_info`: is it alive, what has it done, what is it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server.schemas_native import Health
from glm53_server.service import Service, service_of

router = APIRouter(tags=["operations"])


@router.get("/health", response_model=Health, responses={503: {"model": Health}})
@router.get("/ready", response_model=Health, responses={503: {"model": Health}})
async def health(request: Request) -> Response:
    """200 while requests are taken; 503 while loading, draining, or when the engine is lost."""
    service = service_of(request)
    state = "draining" if service.draining else service.engine.state.value
    body = {"ok": service.ready, "status": "ok" if service.ready else "unavailable", "state": state}
    headers = {} if service.ready else {"Retry-After": "2"}
    return JSONResponse(body, status_code=200 if service.ready else 503, headers=headers)


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """The engine's counters and the server's."""
    service = service_of(request)
    return {**service.engine.stats(), **_counters(service)}


@router.get("/server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """What is served and how; no keys, no prompts."""
    service = service_of(request)
    info, plan = service.engine.info, service.plan
    limits = plan.limits
    return {
        "engine": info.engine,
        "mode": plan.mode.value,
        "model": info.served_name,
        "context_length": info.context_tokens,
        "vocab_size": info.vocab_size,
        "uptime_s": round(time.monotonic() - service.started_s, 3),
        "plan": plan.fingerprint(),
        "details": dict(info.details),
        "server_args": {
            "engine": "exllamav3" if info.engine in {"exl3", "stock"} else info.engine,
            "model_dir": plan.model.path,
            "served_name": info.served_name,
            "host": plan.listen.host,
            "port": plan.listen.port,
            "context_length": info.context_tokens,
            "max_batch_size": info.max_batch,
            "max_running_requests": info.max_batch,
            "max_total_num_tokens": limits.cache_tokens,
            "cache_size": limits.cache_tokens,
            "chunked_prefill_size": limits.chunk_tokens,
            "chunk_size": limits.chunk_tokens,
            "max_q_size": limits.max_queued,
            "kv_cache_dtype": "float16",
        },
        "choices": [asdict(choice) for choice in plan.choices],
    }


def _counters(service: Service) -> dict[str, Any]:
    engine, metrics = service.engine, service.metrics
    return {
        "requests": metrics.requests,
        "completion_tokens": metrics.completion_tokens,
        "prompt_tokens": metrics.prompt_tokens,
        "cached_tokens": metrics.cached_tokens,
        "in_flight": metrics.in_flight,
        "finished": dict(metrics.finished),
        "running": engine.running,
        "queued": engine.queued,
        "steps": engine.steps,
        "state": engine.state.value,
        "uptime_s": round(time.monotonic() - service.started_s, 3),
    }
