"""The conversation in the documentation, line by line."""

import json
import re
from pathlib import Path
from typing import Any

from tests.conformance.tinymq.client import Tinymq

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "tcp.md"
TRANSCRIPT = re.compile(r"<!-- transcript -->\n```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def timeless(answer: Any) -> Any:
    """The same without its times, each of which must be one."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name == "timestamp":
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", value)
        return {name: timeless(value) for name, value in answer.items() if name != "timestamp"}
    return [timeless(each) for each in answer] if isinstance(answer, list) else answer


def test_the_conversation_goes_as_the_document_says(tinymq: Tinymq) -> None:
    (transcript,) = TRANSCRIPT.findall(DOCUMENT.read_text(encoding="utf-8"))
    lines = transcript.splitlines()
    assert len(lines) >= 20
    for sent, expected in zip(lines[::2], lines[1::2], strict=True):
        assert timeless(tinymq.line(sent)) == timeless(json.loads(expected)), sent
