"""The sandboxes of an episode, known by its name in their metadata.

A sandbox carries the episode and its job from its first moment on. Each life looks for it by these before it makes one,
so that one that was made in the moment before a death is found; and the end of the episode takes away whatever carries
its name.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec.structs import replace

from dsec.base.errors import SandboxNotFoundError
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxSpec, SandboxState
from dsec.worker.episodes.ports import LifeContext

EPISODE_KEY, JOB_KEY = "episode", "job"
_GONE = (SandboxState.FAILED, SandboxState.STOPPING, SandboxState.STOPPED)
_BODY = 40


def episode_sandbox_id(episode_id: str, number: int) -> str:
    """Return the id of the `number`-th sandbox of an episode."""
    body = episode_id.removeprefix("ep-")
    if len(body) > _BODY:
        digest = blake2b(episode_id.encode(), digest_size=4).hexdigest()
        body = f"{body[:_BODY].rstrip('-')}-{digest}"
    return f"sbx-{body}-e{number}"


def episode_sandbox_spec(context: LifeContext) -> SandboxSpec:
    """Return what is made for an episode: what its spec says, with the episode and its job in the metadata."""
    spec = context.spec
    metadata = {**spec.environment.sandbox.metadata, EPISODE_KEY: context.episode_id}
    if spec.job:
        metadata[JOB_KEY] = spec.job
    return replace(spec.environment.sandbox, metadata=metadata)


async def episode_sandboxes(context: LifeContext) -> list[SandboxInfo]:
    """Return the sandboxes that carry the episode's name and can be gone on with."""
    found = await context.service.list(SandboxFilter(metadata={EPISODE_KEY: context.episode_id}))
    return [info for info in found if info.state not in _GONE]


async def remove_episode_sandboxes(context: LifeContext) -> None:
    """Take away every sandbox that carries the episode's name; what is gone meanwhile is gone.

    Raises:
        DsecError: one could not be taken away.
    """
    for info in await context.service.list(SandboxFilter(metadata={EPISODE_KEY: context.episode_id})):
        try:
            await context.service.remove(info.sandbox_id)
        except SandboxNotFoundError:
            continue
