"""Bytes in records: shown as text where they are text, as base64 where they are not."""

from __future__ import annotations

from dsec.model.value import Value


def recordable(text: str) -> str:
    """Return `text` as JSON can hold it: surrogates, which stand for bytes of names that are not UTF-8, become "?"."""
    return text.encode(errors="replace").decode()


class Content(Value, frozen=True, omit_defaults=True):
    """Bytes that people can read in a JSON record.

    Exactly one of the two fields holds the bytes; both empty means no bytes.

    Attributes:
        text: the bytes, when they are UTF-8.
        raw: the bytes (base64 in JSON), when they are not.
    """

    text: str = ""
    raw: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Wrap `data`."""
        try:
            return cls(text=data.decode())
        except UnicodeDecodeError:
            return cls(raw=data)

    @property
    def data(self) -> bytes:
        """The bytes."""
        return self.raw or self.text.encode()

    def shown(self) -> str:
        """Return a text for people; bytes that are no text become U+FFFD."""
        return self.text or self.raw.decode(errors="replace")
