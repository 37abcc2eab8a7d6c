"""Every check of tests/gpu on every kernel that it is about; skipped, with the reason, where there is no device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checks import CHECKS, Check
from driver import Gpu
from gemmill.arch import find_arch
from gemmill.cuda import why_not_cuda
from gemmill.search import VARIABLE
from workbench import Workbench, Wrong

from kernels.paths import CHECKOUT

REASON = why_not_cuda(find_arch("sm_90a"))

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(scope="module")
def bench() -> Workbench:
    """Return the kernels of GEMMILL_CACHE, or else of the checkout's cache, on the first device."""
    found = Workbench.find(Gpu(), Path(os.environ.get(VARIABLE, str(CHECKOUT.cache)).split(os.pathsep)[0]))
    if not found.entries:
        pytest.skip("not built: ./mill arch=sm_90a")
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_on_the_device(check: Check, bench: Workbench) -> None:
    failures, skipped = [], None
    for entry in check.entries(bench):
        try:
            skipped = check.run(bench, bench.kernel(entry))
        except Wrong as error:
            failures.append(f"{entry.name}: {error}")
    assert not failures, "\n".join(failures)
    if skipped:
        pytest.skip(skipped)
