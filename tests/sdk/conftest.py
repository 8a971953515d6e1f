"""The SDK meets the same server as the API's tests do."""

from tests.api.conftest import http, node, service, serving, short_dir  # noqa: F401 - fixtures.
