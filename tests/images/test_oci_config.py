"""Labels of an image declare hooks and fingerprint rules."""

from __future__ import annotations

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError
from dsec.images.importers.oci_config import OciImageConfig, image_config
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
