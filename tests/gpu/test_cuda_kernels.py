"""The selftest of every built sm_90a kernel; skipped, with the reason, where there is no device."""

from __future__ import annotations

import pytest
from gemmill.arch import find_arch
from gemmill.cache import Cache
from gemmill.cuda import why_not_cuda
from gemmill.errors import KernelNotFound
from gemmill.selftest import run_selftest

from kernels.catalogue import load_catalogue
from kernels.config import KernelConfig
from kernels.paths import CHECKOUT

REASON = why_not_cuda(find_arch("sm_90a"))

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.mark.parametrize("config", load_catalogue().configs("sm_90a", out=None), ids=lambda c: c.name)
def test_selftest(config: KernelConfig) -> None:
    cache = Cache(CHECKOUT.cache)
    try:
        key = cache.entry(config.arch, config.name).key
    except KernelNotFound:
        pytest.skip("not built: ./mill arch=sm_90a")
    result = run_selftest(cache, key, record=False)
    assert result["outcome"] == "passed", result["reason"]
