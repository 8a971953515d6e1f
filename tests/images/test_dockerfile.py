"""What a Dockerfile stands on is found, and nothing else of it is touched."""

from __future__ import annotations

import pytest

from dsec.images.dockerfile import rewrite


def rewritten(text: str, **arguments: str) -> tuple[str, list[str]]:
    asked: list[str] = []

    def resolve(name: str) -> str:
        asked.append(name)
        return f"local/{len(asked)}"

    return rewrite(text, resolve=resolve, arguments=arguments, added=["ARG X=1"]), asked


def test_from_is_replaced_and_followed_by_the_added_lines() -> None:
    assert rewritten("FROM python\nRUN true\n") == ("FROM local/1\nARG X=1\nRUN true\n", ["python"])


@pytest.mark.parametrize(
    ("line", "name", "result"),
    [
        ("from python:3.11 as Build", "python:3.11", "FROM local/1 as Build"),
        ("FROM --platform=linux/amd64 a/b:c", "a/b:c", "FROM local/1"),
        ("  FROM   python  ", "python", "FROM local/1"),
        ("FROM \\\n  python", "python", "FROM local/1"),
    ],
)
def test_forms_of_from(line: str, name: str, result: str) -> None:
    text, asked = rewritten(line)
    assert asked == [name]
    assert text.splitlines()[0] == result


def test_stages_and_scratch_are_no_images() -> None:
    text = "FROM python AS One\nFROM one\nFROM scratch\nCOPY --from=one /a /b\nCOPY --from=0 /a /b\n"
    assert rewritten(text)[1] == ["python"]


def test_copy_and_mount_from_an_image_are_replaced() -> None:
    text = "FROM a\nCOPY --chown=1:1 --from=tools:v1 /x /y\nRUN --mount=type=bind,from=data,target=/d cat /d/x\n"
    result, asked = rewritten(text)
    assert asked == ["a", "tools:v1", "data"]
    assert "COPY --chown=1:1 --from=local/2 /x /y" in result
    assert "RUN --mount=type=bind,from=local/3,target=/d cat /d/x" in result


@pytest.mark.parametrize("written", ["$BASE", "${BASE}", "${BASE:-other}", "${OTHER:-debian:12}"])
def test_arguments_before_from_are_substituted(written: str) -> None:
    assert rewritten(f'ARG BASE="debian:12"\nFROM {written}\n')[1] == ["debian:12"]


def test_given_argument_replaces_the_default() -> None:
    assert rewritten("ARG BASE=debian\nFROM $BASE\n", BASE="python")[1] == ["python"]


def test_from_in_a_continued_command_is_no_instruction() -> None:
    text = "FROM a\nRUN query \\\n  # a comment\n\\\n FROM table\nRUN x\n"
    result, asked = rewritten(text)
    assert asked == ["a"]
    assert "FROM table" in result


def test_comments_and_everything_else_stay() -> None:
    text = "# syntax=docker/dockerfile:1\n\nFROM a\n# FROM b\nENV FROM=c\nRUN echo from d\n"
    result, asked = rewritten(text)
    assert asked == ["a"]
    assert result == text.replace("FROM a\n", "FROM local/1\nARG X=1\n")
