"""Who may go on from an answer that a backend keeps."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
ANSWER = {
    "id": "resp_1",
    "object": "response",
    "model": "m",
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 5, "output_tokens": 3},
}


async def test_a_project_cannot_go_on_from_another_projects_answer(
    open_gateway: Any, backends: Any, shapes: Any, make_project_key: Any
) -> None:
    alpha, beta = make_project_key("alpha"), make_project_key("beta")
    backends[0].act = shapes.answering(ANSWER)
    gateway = await open_gateway(only_first=True, open_to_all=False, backend='apis = ["responses"]')

    async def ask(key: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        return await gateway.http.post("/v1/responses", json={"model": "m", "input": "hi", **more}, headers=headers)

    assert (await ask(alpha)).status_code == 200
    refused = await ask(beta, previous_response_id="resp_1")
    assert refused.status_code == 404
    assert "there is no answer" in refused.json()["error"]["message"]
    assert len(backends[0].bodies) == 1
    assert (await ask(alpha, previous_response_id="resp_1")).status_code == 200
    # A backend that answers equal calls with equal ids gave it to both.
    assert (await ask(beta)).status_code == 200
    assert (await ask(beta, previous_response_id="resp_1")).status_code == 200
