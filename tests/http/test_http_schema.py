"""schemathesis against our OpenAPI document: no 5xx, and answers that match their schema."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from glm53_server.app import create_app
from glm53_server.engine import scripted
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan, ScriptPlan

TINY = Path(__file__).parents[2] / "reference" / "tiny"
PLAN = Plan(
    mode=Mode.CPU,
    engine=EngineName.SCRIPTED,
    model=ModelPlan(str(TINY), "tiny", 512),
    listen=ListenPlan(),
    cpu=CpuPlan(1, (0,)),
    script=ScriptPlan(tokens_per_s=0),
)
DOCUMENT = create_app(scripted.load(PLAN, lambda *_: None), PLAN).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE])
CHECKS = (
    checks.not_a_server_error,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.status_code_conformance,
)


@pytest.fixture(scope="module")
def url(serve):
    with serve(script=ScriptPlan(tokens_per_s=0), context=512) as (_, address):
        yield address


@SCHEMA.parametrize()
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_document_is_honest(case, url):
    case.call_and_validate(base_url=url, checks=CHECKS)


def test_document_lists_every_endpoint():
    assert {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}",
        "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/generate", "/tokenize",
        "/detokenize", "/health", "/stats", "/server_info", "/metrics",
    } <= DOCUMENT["paths"].keys()  # fmt: skip
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert "422" not in operation["responses"], path
