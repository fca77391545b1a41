"""The hub: what the pinned revision holds, and from where. The only importer of huggingface-hub.

Our Xet-free rule: files come by plain HTTP from the addresses that the chosen endpoint gives, so that a
mirror or a proxy sees all of the traffic. Foreign exceptions end here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx

from glm53ctl import __version__
from glm53ctl.env import Environ, without_hub_telemetry
from glm53ctl.errors import ArtifactError
from glm53ctl.fetch.catalog import Release
from glm53ctl.fetch.lockfile import Lock, LockedFile

DEFAULT_ENDPOINT = "https://huggingface.co"
PREFLIGHT_S = 5.0
LISTING_S = 90.0
_BYTE = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}


class _Unusable(Exception):
    """Why an endpoint cannot be used, in words."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One hub. The user's token goes to the official hub and to HF_ENDPOINT, never to other mirrors."""

    url: str
    token: str | bool | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request: who asks, and the token where this hub may see it."""
        without_hub_telemetry()
        from huggingface_hub import utils

        found = cast("Any", utils).build_hf_headers(
            token=self.token, library_name="glm53ctl", library_version=__version__
        )
        return {**found, "Accept-Encoding": "identity"}

    def address(self, release: Release, path: str) -> str:
        """Where a file of the pinned revision is."""
        without_hub_telemetry()
        from huggingface_hub import hf_hub_url

        return hf_hub_url(release.repo, path, revision=release.revision, endpoint=self.url)


def endpoints(environ: Environ, mirrors: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """The hubs to try, in order: the user's mirrors, then HF_ENDPOINT or the official hub."""
    official = Endpoint(
        (environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"), environ.get("HF_TOKEN")
    )
    others = tuple(Endpoint(url.rstrip("/"), token=False) for url in mirrors)
    return (*(item for item in others if item.url != official.url), official)


def choose(
    release: Release,
    candidates: tuple[Endpoint, ...],
    client: httpx.Client,
    note: Callable[[str], None],
) -> tuple[Endpoint, Lock]:
    """The first endpoint that lists the revision and whose data host answers, and the listing.

    Raises ArtifactError naming every endpoint with its problem.
    """
    problems: list[str] = []
    for endpoint in candidates:
        try:
            _preflight(release, endpoint, client)
            return endpoint, _list(release, endpoint)
        except _Unusable as problem:
            problems.append(f"{endpoint.url}: {problem}")
            note(f"cannot download from {problems[-1]}")
    raise ArtifactError(
        f"{release.name} cannot be downloaded: " + "; ".join(problems),
        hint="try a mirror: GLM53_MIRRORS=https://… glm53ctl models pull\n"
        "or take a copy you have: glm53ctl models import /path",
        error_id="ART-005",
    )


def _preflight(release: Release, endpoint: Endpoint, client: httpx.Client) -> None:
    """Fetch one byte of a large file along all redirects: metadata may answer where data is blocked."""
    address = endpoint.address(release, release.probe)
    try:
        with client.stream(
            "GET", address, headers={**endpoint.headers, **_BYTE}, timeout=PREFLIGHT_S
        ) as answer:
            first = answer.history[0] if answer.history else answer
            status, commit = answer.status_code, first.headers.get("x-repo-commit")
    except httpx.HTTPError as err:
        raise _Unusable(transport_words(err, address)) from err
    if status == 429:
        return  # alive; the listing waits as long as it is told
    if status >= 400:
        raise _Unusable(f"HTTP {status} for {release.probe}")
    if commit is None:
        raise _Unusable("it does not answer like a Hugging Face hub (no X-Repo-Commit header)")
    if commit != release.revision:
        raise _Unusable(f"it serves revision {commit[:12]}, not {release.revision[:12]}")


def transport_words(err: httpx.HTTPError, address: str) -> str:
    """What went wrong on the way, naming the host that did not answer."""
    try:
        host = err.request.url.netloc.decode()
    except RuntimeError:
        host = httpx.URL(address).netloc.decode()
    asked = httpx.URL(address).netloc.decode()
    via = "" if host == asked else f" (where {asked} keeps the data)"
    words = str(err) or type(err).__name__
    match err:
        case httpx.ProxyError():
            return f"the proxy refused the way to {host}: {words}"
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return f"{host}{via} cannot be reached: {words}"
        case httpx.TimeoutException():
            return f"{host}{via} does not answer: {words}"
        case _:
            return f"{host}{via} broke off: {words}"


def _list(release: Release, endpoint: Endpoint) -> Lock:
    files = tuple(
        _locked(release, item)
        for item in _within(LISTING_S, lambda: _tree(release, endpoint))
        if not item.path.startswith(".")
    )
    if not any(item.path.endswith(".safetensors") for item in files):
        raise _Unusable("the revision it lists has no weights")
    return Lock(release.repo, release.revision, files)


def _tree(release: Release, endpoint: Endpoint) -> list[Any]:
    without_hub_telemetry()
    import httpx2  # what huggingface-hub speaks with
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=endpoint.url, token=endpoint.token, library_name="glm53ctl")
    try:
        found = api.list_repo_tree(release.repo, revision=release.revision, recursive=True)
        return [item for item in found if isinstance(item, RepoFile)]
    except HfHubHTTPError as err:
        raise _Unusable(f"HTTP {err.response.status_code} for the list of files") from err
    except (httpx2.HTTPError, OSError) as err:
        raise _Unusable(f"the list of files did not arrive: {err}") from err
    except (ValueError, KeyError, TypeError) as err:
        raise _Unusable(f"the list of files is not one of a hub: {err}") from err


def _within(limit_s: float, call: Callable[[], list[Any]]) -> list[Any]:
    """Run a call that has no deadline of its own in a thread that may be abandoned."""
    result: list[list[Any]] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as err:  # noqa: BLE001 - raised again in the caller's thread
            failure.append(err)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failure:
        raise failure[0]
    if not result:
        raise _Unusable(f"the list of files did not arrive within {limit_s:.0f} s")
    return result[0]


def _locked(release: Release, item: Any) -> LockedFile:
    """A listed file as a lock entry. Raises _Unusable where a confirmed fact is contradicted."""
    sha256 = str(item.lfs.sha256) if item.lfs else None
    known = release.known_file(item.path)
    if known is not None and known.confirmed:
        if (sha256 or known.sha256, item.size) != (known.sha256, known.size_bytes):
            raise _Unusable(f"its {item.path} is not the known one of this revision")
        return LockedFile(item.path, item.size, known.sha256, item.blob_id, "known")
    oid = None if item.lfs else str(item.blob_id)
    return LockedFile(item.path, item.size, sha256, oid, "hub")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds a server asks to wait; None when it does not say, or says it as a date."""
    text = headers.get("retry-after", "").strip()
    return float(text) if text.isdigit() else None
