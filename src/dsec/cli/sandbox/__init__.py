"""`dsec sandbox`."""

from dsec.cli.sandbox.group import sandbox as sandbox
