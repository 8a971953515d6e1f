"""What two nodes tell each other about a sandbox that moves (docs/formats/migration.md).

The values of `dsec.service.peers.Peer`. They travel between nodes of one owner and still are judged like any input:
a peer may be of another version, broken, or dead in the middle of a sentence.
"""

from __future__ import annotations

import enum

from dsec.lifecycle.migration import SourcePhase, TargetPhase, Verdict
from dsec.model.image import ImageConfig
from dsec.model.sandbox import SandboxInfo, SandboxSpec
from dsec.model.value import Value

PROTOCOL_VERSION = 1
PREFIX = "mig"
ID_LENGTH = 16
"""Symbols of a migration's id."""


class MovedCheckpoint(Value, frozen=True):
    """A checkpoint that moves with its sandbox; its fields are those of the journal's `CheckpointRecord`."""

    checkpoint_id: str
    name: str = ""
    parent: str | None = None
    generation: int = 0
    created_wall_s: float = 0.0
    frozen_s: float = 0.0
    written_bytes: int = 0
    exported_bytes: int | None = None
    snapshot: str = ""
    automatic: bool = False


class MigrationOffer(Value, frozen=True):
    """The question whether a node takes a sandbox, with all that it has to know to make it.

    Attributes:
        version: of the protocol.
        migration_id: ``mig-...``; drawn by the source for this attempt.
        source: id of the source's node, by which the target finds it among its own peers when it is in doubt.
        sandbox_id: kept by the move.
        requested, spec: as in the journal: what an idempotent create compares, and what is enforced. Environment and
            seed are in it.
        image_config: settings of the image at creation.
        layers: digests of the read-only layers from the lowest up; the target must have them.
        encoding: how the content of layers travels, such as ``btrfs-send-1``; the target must read it.
        generation, first_generation: of the source's sandbox; the target's is the next generation.
        created_wall_s: when it was created, for people.
        remaining_s: what is left of its maximum lifetime; None: it has none.
        written_bytes: what all rounds will write at about; the target must have the room.
        checkpoints: that move with it, each after the one it began from.
        paused: it is paused, and is to be there.
        has_origin: whether its clean state is a layer that travels, because it was forked or restored.
        current: the checkpoint from which its present state began; None: its clean state.
        parent, forked_from, snapshot: where it came from, for people.
    """

    version: int
    migration_id: str
    source: str
    sandbox_id: str
    requested: SandboxSpec
    spec: SandboxSpec
    image_config: ImageConfig
    layers: tuple[str, ...]
    encoding: str
    generation: int = 0
    first_generation: int = 0
    created_wall_s: float = 0.0
    remaining_s: float | None = None
    written_bytes: int = 0
    checkpoints: tuple[MovedCheckpoint, ...] = ()
    paused: bool = False
    has_origin: bool = False
    current: str | None = None
    parent: str = ""
    forked_from: str = ""
    snapshot: str = ""


class MigrationAccepted(Value, frozen=True):
    """The answer of a node that takes it. One that does not raises its reason.

    Attributes:
        node: its id.
        lease_s: the longest silence between two messages; after it the target gives up by itself.
    """

    node: str
    lease_s: float


class Part(enum.Enum):
    """What a round carries."""

    LAYER = "layer"
    """Files, in the offer's encoding."""
    EXPORT = "export"
    """What an export hook gave, as it is."""


ORIGIN = "origin"
PRESENT = "present"


class MigrationRound(Value, frozen=True):
    """What precedes the bytes of one round.

    Attributes:
        number: counts from 0 over all rounds of the migration; it must be the next one.
        part: what the bytes are.
        of: id of the checkpoint, `ORIGIN` or `PRESENT`: whose state it is.
        base: `ORIGIN` or the checkpoint on which it is an increment; None: on nothing. A second and later round of
            `PRESENT` is an increment on the one before, and says the base of the first.
    """

    number: int
    part: Part
    of: str
    base: str | None = None


class RoundReceipt(Value, frozen=True):
    """What was received of a round, so that the source can compare.

    Attributes:
        number: of the round.
        size_bytes: of its content.
        digest: BLAKE3 of its content, hexadecimal.
    """

    number: int
    size_bytes: int
    digest: str


class MigrationCommit(Value, frozen=True):
    """The source's word that rounds 0 to `rounds` - 1 are all, and its sandbox stands still since the last."""

    rounds: int


class ReleaseAnswer(Value, frozen=True):
    """The acknowledgement of a release.

    Attributes:
        sandbox: as it is on the target now; None: its owner removed it there meanwhile.
    """

    sandbox: SandboxInfo | None = None


class MigrationStatus(Value, frozen=True):
    """How a migration stands with who was asked.

    Attributes:
        source: phase of the one that was asked as its source; None: it is not, or gave up.
        target: phase as its target; None: it is not, or gave up.
        verdict: what the source decided. A target answers `OPEN`, since it decides nothing.
    """

    source: SourcePhase | None
    target: TargetPhase | None
    verdict: Verdict
