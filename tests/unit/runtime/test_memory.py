"""Large buffers that live for a moment do not go back to the kernel in between."""

import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
from penstock.runtime.memory import keep_freed_memory
if not keep_freed_memory():
    sys.exit(77)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytes(2_000_000)
before = faults()
for _ in range(200):
    bytes(1_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is on Linux")
def test_a_buffer_made_again_and_again_touches_no_new_pages() -> None:
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=False)
    if run.returncode == 77:
        pytest.skip("this C library has no mallopt")
    assert run.returncode == 0, run.stderr
    # 200 buffers of 244 pages each: without it some 50,000 faults.
    assert int(run.stdout) < 1000
