"""Configurations: what is wrong is said with file, line and what was expected."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api, ThinkingControl
from dsec.gateway.config_reading import parse_config

GOOD = """\
[gateway]
port = 0
maximum_body = "1 MiB"

[models.coder]
groups = ["big"]
stall_timeout = "90s"
objective = "price"
thinking = { tokens_per_call = 4000 }

[projects.alpha]
weight = 2.0
budget = { usd = "50 USD", tokens = 1000 }

[[backends]]
name = "one"
group = "big"
url = "http://127.0.0.1:9/v1"
slots = 16
pace = [{ calls = 16, token_time = "16.9ms" }, { calls = 32, token_time = "25.3ms" }]
prefill = "8000 token/s"
prices = { input = "2 USD/Mtoken", output = "10 USD/Mtoken" }
reserved = "6.79 USD/h"
"""


def test_units_become_numbers() -> None:
    config = parse_config("gateway.toml", GOOD)
    assert config.gateway.maximum_body_bytes == 1 << 20
    assert config.models["coder"].stall_timeout_s == 90
    assert config.projects["alpha"].budget.usd == 50
    (backend,) = config.backends
    assert backend.pace[1].token_time_s == pytest.approx(0.0253)
    assert backend.prefill_tokens_per_s == 8000
    assert backend.prices is not None
    assert backend.prices.output_usd_per_mtoken == 10
    assert backend.reserved_usd_per_h == 6.79
    assert (backend.spoken, backend.control) == ((Api.CHAT,), ThinkingControl.NONE)


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ('maximum_body = "1 MiB"', 'maximun_body = "1 MiB"', 3, "maximum_body"),
        ('"1 MiB"', "5", 3, "32 MiB"),
        ('"90s"', '"90 light years"', 7, "90s"),
        ('"2 USD/Mtoken"', '"2 EUR/Mtoken"', 22, "USD/Mtoken"),
        ('"2 USD/Mtoken"', "2", 22, "USD/Mtoken"),
        ("slots = 16", 'slots = "many"', 19, "int"),
        ('["big"]', '["bug"]', 5, "did you mean 'big'"),
        ("http://127.0.0.1:9/v1", "127.0.0.1:9", 18, "http://"),
        ("http://127.0.0.1:9/v1", "http://user:secret@host/v1", 18, "without credentials"),
        ('"price"', '"cheapest"', 8, "cheapest"),
        ("weight = 2.0", "weight = 0", 12, "above 0"),
        ('name = "one"', 'name = "one"\nkind = "anthropic"\napis = ["responses"]', 18, "messages"),
        ('name = "one"', 'name = "one"\nheaders = { Authorization = "x" }', 17, "key_env"),
        ('name = "one"', "name = one", 16, "TOML"),
        ("port = 0", "port = 70000", 2, "65535"),
        ("port = 0", 'open = true\nhost = "0.0.0.0"', 2, "spend your money"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, line: int, expected: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_config("gateway.toml", GOOD.replace(old, new, 1))
    assert raised.value.brief.startswith(f"gateway.toml:{line}: ")
    assert expected in str(raised.value)


def test_a_gateway_without_backends_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="backends"):
        parse_config("gateway.toml", "[gateway]\nport = 0\n")
