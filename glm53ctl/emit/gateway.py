"""Beyond one server: several instances behind LiteLLM, or the vendor's weights on many GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass

VENDOR_MODEL = "zai-org/GLM-5.3-Flash"
HAND_OVER_IMAGES = {"sglang": "lmsysorg/sglang:v0.5.23", "vllm": "vllm/vllm-openai:v0.33.0"}


@dataclass(frozen=True, slots=True)
class Backend:
    """One running server: its base URL without /v1, the model it serves, how many streams it decodes."""

    name: str
    url: str
    model: str
    streams: int
    has_key: bool


def litellm(backends: list[Backend]) -> str:
    """config.yaml of a LiteLLM proxy: one model name, each request to the least busy server."""
    model = backends[0].model
    lines = [
        "# litellm --config litellm.yaml --port 4000",
        "model_list:",
    ]
    for item in backends:
        lines += [
            f"  - model_name: {_yaml(model)}",
            "    litellm_params:",
            f"      model: {_yaml(f'hosted_vllm/{item.model}')}",
            f"      api_base: {_yaml(f'{item.url}/v1')}",
            *([f"      api_key: os.environ/{key_variable(item)}"] if item.has_key else []),
            f"      max_parallel_requests: {item.streams}",
            "      stream_timeout: 600  # a long prompt takes minutes to its first token",
            "      timeout: 3600",
            "    model_info:",
            f"      id: {_yaml(item.name)}",
        ]
    lines += [
        "router_settings:",
        "  routing_strategy: least-busy",
        "  num_retries: 2",
        "  allowed_fails: 1",
        "  cooldown_time: 30  # a restart of a loaded server is shorter than this or takes minutes",
        "litellm_settings:",
        "  drop_params: false  # a parameter that a server does not support is an error, not ignored",
    ]
    return "\n".join(lines) + "\n"


def key_variable(item: Backend) -> str:
    """The variable in which LiteLLM finds a server's key."""
    return f"GLM53_API_KEY_{item.name.upper().replace('-', '_').replace('.', '_')}"


def hand_over(engine: str, *, gpus: int, port: int, served_name: str, cache_dir: str) -> str:
    """A compose file that serves the vendor's weights with SGLang or vLLM on `gpus` cards.

    For hosts whose cards hold the whole model; our EXL3 file is not used there.
    """
    command = {
        "sglang": [
            *("python3", "-m", "sglang.launch_server", "--model-path", VENDOR_MODEL),
            *("--tp-size", str(gpus), "--served-model-name", served_name),
            *("--tool-call-parser", "glm47", "--reasoning-parser", "glm45"),
            *("--host", "0.0.0.0", "--port", "8000"),
        ],
        "vllm": [
            *("--model", VENDOR_MODEL, "--tensor-parallel-size", str(gpus)),
            *("--served-model-name", served_name, "--enable-auto-tool-choice"),
            *("--tool-call-parser", "glm47", "--reasoning-parser", "glm45", "--port", "8000"),
        ],
    }[engine]
    lines = [
        f"# {VENDOR_MODEL} on {gpus} GPUs with {engine}: clients keep their URL and model name.",
        "# Pin the image by its digest once it works; parser names: see the engine's own --help.",
        f"name: glm53-{engine}",
        "services:",
        f"  {engine}:",
        f"    image: {HAND_OVER_IMAGES[engine]}",
        "    command:",
        *(f"      - {_yaml(word)}" for word in command),
        "    ports:",
        f"      - {_yaml(f'127.0.0.1:{port}:8000')}",
        "    volumes:",
        f"      - {_yaml(f'{cache_dir}:/root/.cache/huggingface')}",
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        "            - driver: nvidia",
        f"              count: {gpus}",
        "              capabilities: [gpu]",
        "    ipc: host",
        "    ulimits:",
        "      memlock: -1",
        "    init: true",
        "    restart: unless-stopped",
        "    healthcheck:",
        '      test: ["CMD-SHELL", "curl -fsS http://127.0.0.1:8000/health"]',
        "      interval: 30s",
        "      start_period: 3600s",
        "    logging:",
        "      driver: json-file",
        "      options:",
        '        max-size: "20m"',
        '        max-file: "5"',
    ]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
