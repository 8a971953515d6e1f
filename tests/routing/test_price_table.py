"""Prices have a day and a source, and a wrong table is refused by its line."""

from __future__ import annotations

import datetime

import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.routing.model_names import is_same_model
from dsec.routing.price_table import parse_prices, shipped_prices, shipped_tables

HEAD = '[table]\nname = "mine"\nrecorded_on = 2026-11-30\nsource = "the service\'s page"\n'


def test_every_shipped_table_has_a_day_and_a_source_for_every_price() -> None:
    for name in shipped_tables():
        table = shipped_prices(name)
        assert table.recorded_on > datetime.date(2026, 1, 1)
        assert all(one.source and one.recorded_on == table.recorded_on for one in (*table.models, *table.accelerators))


def test_the_chapters_prices_are_there_and_no_others() -> None:
    table = shipped_prices("chapter")
    haiku, sonnet, opus = (
        table.model(name).prices for name in ("claude-haiku-4.5", "claude-sonnet-5", "claude-opus-5")
    )
    assert (haiku.input_usd_per_mtoken, haiku.cache_read_usd_per_mtoken, haiku.output_usd_per_mtoken) == (1, 0.1, 5)
    assert haiku.cache_write_usd_per_mtoken is None
    assert (sonnet.input_usd_per_mtoken, sonnet.output_usd_per_mtoken) == (2, 10)
    assert (sonnet.cache_write_usd_per_mtoken, sonnet.cache_read_usd_per_mtoken) == (2.5, 0.2)
    assert (opus.input_usd_per_mtoken, opus.output_usd_per_mtoken) == (5, 25)
    assert table.accelerator("runpod-b200-pod").usd_per_gpu_h == 6.79
    assert len(table.models) == 3
    assert (table.environment.memory_usd_per_gib_s, table.environment.cpu_usd_per_s) == (0.0000045, 0.000014)


def test_a_table_need_not_price_sandboxes_and_half_a_price_list_is_one() -> None:
    assert parse_prices("t.toml", HEAD).environment.cpu_usd_per_s is None
    half = parse_prices("t.toml", HEAD + "[environment]\ncpu_usd_per_s = 0\n").environment
    assert (half.cpu_usd_per_s, half.memory_usd_per_gib_s, half.source) == (0.0, None, "the service's page")


def test_a_dated_name_or_an_alias_finds_the_price() -> None:
    table = shipped_prices()
    assert table.model("claude-sonnet-5-20260901").name == "claude-sonnet-5"
    assert table.model("claude-haiku-4-5-20251001").name == "claude-haiku-4.5"


def test_what_is_not_there_is_named_with_what_is_near() -> None:
    with pytest.raises(NotFoundError, match="did you mean claude-sonnet-5"):
        shipped_prices().model("claude-sonet-5")
    with pytest.raises(NotFoundError, match="runpod-b200-pod"):
        shipped_prices().accelerator("h100")
    with pytest.raises(NotFoundError, match="chapter"):
        shipped_prices("yesterday")


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("", "t.toml: table", "missing"),
        ('[table]\nname = "x"\nsource = "y"\n', "t.toml:1: table.recorded_on", "not a day"),
        (HEAD.replace("2026-11-30", '"today"'), "t.toml:3: table.recorded_on", "not a day"),
        (HEAD + 'currency = "EUR"\n', "t.toml:5: table.currency", "not USD"),
        ("environment = 3\n" + HEAD, "t.toml:1: environment", "no table"),
        (HEAD + "[environment]\ncpu_usd_per_s = inf\n", "t.toml:6: environment.cpu_usd_per_s", "no price"),
        (HEAD + "[environment]\ncpu_usd_per_h = 1\n", "t.toml:6: environment.cpu_usd_per_h", "not known"),
        (HEAD + '[[model]]\nname = "m"\n', "t.toml:5: model[0]", "no price"),
        (HEAD + '[[model]]\nname = "m"\noutput_usd_per_mtoken = -1\n', "t.toml:7: model[0].output_usd", "no price"),
        (HEAD + '[[model]]\nname = "m"\ninput_usd_per_mtok = 1\n', "t.toml:7: model[0].input", "mean input_usd"),
        (HEAD + '[[model]]\ninput_usd_per_mtoken = 1\n', "t.toml:5: model[0].name", "missing"),
        (HEAD + '[[model]]\nname = "m"\ninput_usd_per_mtoken = inf\n', "t.toml:7", "USD for a million tokens"),
        (
            HEAD + '[[model]]\nname = "m"\ninput_usd_per_mtoken = 1\n' * 2,
            "t.toml:8: model[1]",
            "has the name 'm'",
        ),
        (HEAD + '[[accelerator]]\nname = "a"\n', "t.toml:5: accelerator[0].usd_per_gpu_h", "accelerator and hour"),
        (HEAD + 'oops', "t.toml:5", "not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_file_and_line(text: str, where: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_prices("t.toml", text)
    assert where in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "answered", "same"),
    [
        ("model", "model", True),
        ("model", "model-20260101", True),
        ("model", "model-2026-01-01", True),
        ("model", "model-0613", True),
        ("model", "model-latest", True),
        ("model-4", "model-4-5", False),
        ("model", "model-mini", False),
        ("model", "another", False),
        ("model-20260101", "model", False),
    ],
)
def test_a_model_with_a_date_is_the_same_and_one_with_a_version_is_not(name: str, answered: str, same: bool) -> None:
    assert is_same_model(name, answered) is same
