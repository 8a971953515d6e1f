"""Price tables that commands are given: a file, or one that comes with the package."""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.routing.price_table import PriceTable, parse_prices, shipped_prices


def read_price_table(name: str | None) -> PriceTable | None:
    """Return the table of a file, or of a name that is no file; None: none was asked for.

    Raises:
        InvalidRequestError: the file cannot be read, or is no price table.
        NotFoundError: no table of this name comes with the package.
    """
    if name is None:
        return None
    path = Path(name)
    if not path.exists() and path.name == name and not path.suffix:
        return shipped_prices(name)
    try:
        return parse_prices(path.name, path.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the price table {name} cannot be read", detail=str(error)) from error
