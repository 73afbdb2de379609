"""HTTP load by wrk: one request, made once, sent again and again on every connection.

Invariant: only responses with status 2xx count, and any other, or a socket error, fails the row.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.address import Address
from penstock.bench.faults import BenchError

MISSING = "wrk is not on the PATH; install the package wrk"
_SECONDS_OVER_MAX = 30.0
_RESULT = re.compile(
    r"^penstock-bench requests=(\d+) us=(\d+) refused=(\d+) broken=(\d+) p50=(\d+) p99=(\d+) p999=(\d+)$", re.MULTILINE
)
# wrk reports to the nearest microsecond; `done` is called once, by its main thread.
_SCRIPT = """\
wrk.method = "POST"
wrk.headers["Content-Type"] = "{content_type}"
local file = assert(io.open("{body_path}", "rb"))
wrk.body = file:read("*a")
file:close()
done = function(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      "\\npenstock-bench requests=%d us=%d refused=%d broken=%d p50=%d p99=%d p999=%d\\n",
      summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"""


@dataclass(frozen=True, slots=True)
class WrkSample:
    """The result of one run."""

    seconds: float
    requests: int
    p50_us: float
    p99_us: float
    p999_us: float


def is_installed() -> bool:
    """Whether wrk can be run."""
    return shutil.which("wrk") is not None


def parse(output: str) -> WrkSample:
    """The line that the script prints."""
    found = _RESULT.search(output)
    if found is None:
        raise BenchError(f"Cannot read the report of wrk: {output[-500:]}")
    requests, duration_us, refused, broken, p50, p99, p999 = (int(text) for text in found.groups())
    if refused or broken:
        raise BenchError(
            f"Of {requests} requests the broker refused {refused}, and {broken} connections broke; see its log"
        )
    return WrkSample(duration_us / 1e6, requests, p50, p99, p999)


def run(address: Address, path: str, body: bytes, *, connections: int, seconds: float, content_type: str) -> WrkSample:
    """POST `body` for `seconds` (wrk counts in whole seconds: at least one)."""
    whole_seconds = max(1, round(seconds))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-wrk-") as folder:
        body_path, script_path = Path(folder, "body"), Path(folder, "script.lua")
        body_path.write_bytes(body)
        script_path.write_text(_SCRIPT.format(content_type=content_type, body_path=body_path))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{whole_seconds}s", "--timeout", "10s", "-s", str(script_path)]
        try:
            done = subprocess.run(
                [*command, f"http://{address}{path}"],
                capture_output=True,
                text=True,
                timeout=whole_seconds + _SECONDS_OVER_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"Cannot run wrk: {error}") from error
    if done.returncode:
        raise BenchError(f"Cannot measure with wrk: {(done.stdout + done.stderr)[-500:]}")
    return parse(done.stdout)
