"""Read-only file data in the memory of microVMs: cached once for the host, or once more in each machine.

A microVM that reads its image through a block device fills its own page cache, and the host fills another. n machines
that read R GiB of one image of V GiB hold

    through a block device     R + n · R          one copy in the host, one in each machine
    mapped from the host       R + n · V / 64     one copy; each machine keeps page descriptors for the whole device

The mapping (virtio-pmem with DAX) costs a descriptor of 64 bytes for each page of 4 KiB of the device, read or not:
1/64 of its size. First accesses fault synchronously and the guest cannot read ahead, which is time and not counted
here. So the mapping pays where more than 1/64 of the image is read.

Assumes that all machines of a host read the same R GiB, which stay cached. Source: the chapter, section 11.2.2,
figures 11-12 and 11-13; "DeepSeek Elastic Compute", arXiv 2609.22978, sections 5.3 and 8.2.
"""

from __future__ import annotations

from dsec.costs.checks import check_count, check_not_negative, check_positive

_DESCRIPTOR_OVER_PAGE = 64 / 4096
"""Bytes of a page descriptor over bytes of a page."""


def descriptors_gib(*, device_gib: float) -> float:
    """Return the memory that a machine keeps to describe the pages of a mapped device.

    Raises:
        InvalidRequestError: the device has no size.

    Formula:
        V · 64 B / 4096 B

    Source:
        the chapter, section 11.2.2
    """
    return check_positive("device_gib", device_gib, "GiB") * _DESCRIPTOR_OVER_PAGE


def cached_in_each_gib(*, machines: int, read_gib: float) -> float:
    """Return the memory that an image takes when host and machines each cache what is read of it.

    Raises:
        InvalidRequestError: there are no machines, or the size is negative.

    Formula:
        (n + 1) · R

    Source:
        the chapter, figure 11-12
    """
    return (check_count("machines", machines) + 1) * check_not_negative("read_gib", read_gib, "GiB")


def cached_once_gib(*, machines: int, read_gib: float, device_gib: float) -> float:
    """Return the memory that an image takes when the machines map the host's copy.

    Raises:
        InvalidRequestError: there are no machines, or more is read than the device holds.

    Formula:
        R + n · V / 64

    Source:
        the chapter, figure 11-13
    """
    check_count("machines", machines)
    check_not_negative("read_gib", read_gib, "GiB")
    check_not_negative("device_gib less read_gib", device_gib - read_gib, "GiB")
    return read_gib + machines * descriptors_gib(device_gib=device_gib)
