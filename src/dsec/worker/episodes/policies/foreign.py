"""Code of others inside the worker: whatever it raises is an error of its episode, and ends no other.

``sys.exit()`` in a library is a `SystemExit`, which would end the process with all its episodes; a cancellation that
nobody asked for would end a loop in silence. Neither is an `Exception`.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from dsec.base.errors import CallerError, DsecError

_SHOWN_CHARACTERS = 300
_SHOWN_FRAMES = 3

_Result = TypeVar("_Result")


async def contained(run: Callable[[], Awaitable[_Result]], what: str) -> _Result:
    """Return what foreign code returns.

    Args:
        run: begins it.
        what: failed, if it does.

    Raises:
        DsecError: it raised one.
        CallerError: it raised anything else.
    """
    try:
        return await run()
    except DsecError:
        raise
    except (Exception, SystemExit, BaseExceptionGroup, anyio.get_cancelled_exc_class()) as error:
        if not isinstance(error, Exception):
            await anyio.lowlevel.checkpoint_if_cancelled()  # If it is we who are cancelled, that goes on here.
        raise foreign_failure(what, error) from error


def foreign_failure(what: str, error: BaseException) -> CallerError:
    """Return our error for what foreign code raised, which its brief says: an episode's reason keeps no more."""
    first, *_ = str(error).splitlines() or [""]
    return CallerError(
        f"{what}: {type(error).__name__}: {first[:_SHOWN_CHARACTERS]}",
        detail="".join(traceback.format_exception(error)[-_SHOWN_FRAMES:]).rstrip(),
        resolution="mend the policy, and resume the episode",
    )
