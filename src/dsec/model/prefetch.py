"""What comes next: steps of tasks, so that what they will read of images can be brought before they read it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dsec.model.value import Value

MAXIMUM_STEPS = 64
_Name = Annotated[str, Meta(min_length=1, max_length=500)]


class PrefetchStep(Value, frozen=True):
    """A step: a command in a stack of images.

    Attributes:
        images: the stack, from the lowest up, as in a sandbox's spec.
        command: program that will run, which may be a whole command; empty: whatever the image's first use is.
    """

    images: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=64)]
    command: Annotated[str, Meta(max_length=4096)] = ""


class PrefetchHint(Value, frozen=True):
    """What somebody will probably do next.

    Attributes:
        owner: who says so: a new hint replaces the last one of the same owner. Empty: `sandbox_id` does.
        sandbox_id: the sandbox that the steps follow in; it ends with the sandbox. Empty: they are those of later ones.
        steps: what comes next, the nearest first. Three count; of a sandbox that is in a step already, two.
    """

    owner: Annotated[str, Meta(max_length=100)] = ""
    sandbox_id: str = ""
    steps: Annotated[tuple[PrefetchStep, ...], Meta(max_length=MAXIMUM_STEPS)] = ()
