"""Labels of an image declare hooks and fingerprint rules."""

from __future__ import annotations

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError
from dsec.images.importers.oci_config import OciHistory, OciImageConfig, image_config, told_step
from dsec.model.image import FingerprintRules, ImageConfig, StateHooks


def config(labels: dict[str, str]) -> ImageConfig:
    document = {"rootfs": {"diff_ids": []}, "config": {"Labels": labels, "Cmd": ["x"]}}
    return image_config(msgspec.json.decode(msgspec.json.encode(document), type=OciImageConfig))


def test_labels_become_hooks_and_rules() -> None:
    made = config(
        {
            "dev.dsec.hooks.export": '["save", "--all"]',
            "dev.dsec.hooks.import": '["load"]',
            "dev.dsec.hooks.limits": '{"timeout_s": 3, "maximum_bytes": 1000}',
            "dev.dsec.fingerprint": '{"files": ["/etc/passwd"]}',
            "maintainer": "somebody",
        }
    )
    assert made.hooks == StateHooks(
        export_state=("save", "--all"), import_state=("load",), timeout_s=3.0, maximum_bytes=1000
    )
    assert made.fingerprint == FingerprintRules(files=("/etc/passwd",))


def test_an_image_without_labels_has_no_hooks() -> None:
    assert config({}).hooks == StateHooks()


@pytest.mark.parametrize("label", ["dev.dsec.hooks.export", "dev.dsec.hooks.limits", "dev.dsec.fingerprint"])
def test_a_label_of_ours_that_cannot_be_read_is_named(label: str) -> None:
    with pytest.raises(InvalidRequestError, match=label):
        config({label: '"save'})


@pytest.mark.parametrize(
    ("created_by", "told"),
    [
        (None, ""),
        ("|2 A=b c PROXY=http://x /bin/sh -c make install", "make install"),
        ("/bin/sh -c #(nop) COPY dir:1 in /srv ", "COPY dir:1 in /srv"),
        ("RUN |1 A=b /bin/sh -c make # buildkit", "make"),
        ("COPY . /srv # buildkit", "COPY . /srv"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_a_step_is_told_without_what_builders_write_before_it(created_by: str | None, told: str) -> None:
    assert told_step(OciHistory(created_by=created_by)) == told
