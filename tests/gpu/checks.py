"""All checks on a device, and which kernels each of them is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import accumulation
import concurrency
import conversion
import faults
import shapes
import wide
from gemmill.loader import Kernel
from workbench import Workbench, representatives


def _every(entry: Any) -> Any:
    return entry.name


def _family(entry: Any) -> Any:
    return entry.config["family"]


def _way_of_a(entry: Any) -> Any:
    """How A is stored: what its 64-bit offsets depend on. Scales of other types would only repeat it."""
    return entry.config["layout"], "i4" in entry.config["variant"]


def _layout(entry: Any) -> Any:
    return entry.config["layout"]


def _converting(entry: Any) -> Any:
    """Kernels that copy operands to K-major ahead, as templates/cuda.cu.j2 chooses them."""
    config = entry.config
    int4_alone = "i4" in config["variant"] and config["layout"][1] == "c" and config["tile"][0] > 16
    copies = int4_alone if config["family"] == "decode" else config["layout"][1] == "r" or int4_alone
    return entry.name if config["family"] != "preshufflequant" and copies else None


def _family_of_rcr(entry: Any) -> Any:
    """Kernels whose B is cheap to make large."""
    return entry.config["family"] if entry.config["layout"] == "rcr" else None


def _instruction(entry: Any) -> Any:
    """Operand types and tile, hence the shape of the matrix instruction."""
    return entry.config["variant"], tuple(entry.config["tile"])


@dataclass(frozen=True)
class Check:
    """A check, and by what its kernels are chosen: it runs for the first kernel of each class that is not None."""

    name: str
    run: Callable[[Workbench, Kernel], str | None]
    by: Callable[[Any], Any] = _every

    def entries(self, bench: Workbench) -> list[Any]:
        """Return the kernels, as index entries in the order of the bench."""
        return representatives(bench.entries, self.by)


CHECKS = (
    Check("shapes", shapes.check_shapes),
    Check("inputs", shapes.check_inputs_are_left_alone),
    Check("repeats", shapes.check_repeats),
    Check("conversion", conversion.check_conversion, _converting),
    Check("conversion-in-turn", conversion.check_in_turn, _converting),
    Check("conversion-at-once", conversion.check_at_once, _converting),
    Check("conversion-arguments", conversion.check_arguments, _converting),
    Check("far-lines", wide.check_far_lines),
    Check("two-streams", concurrency.check_two_streams),
    Check("load", concurrency.check_bits_under_load),
    Check("two-threads", concurrency.check_two_threads),
    Check("no-context", concurrency.check_threads_without_context, _family),
    Check("graph", concurrency.check_graph),
    Check("rewritten-inputs", concurrency.check_rewritten_inputs),
    Check("chain", concurrency.check_chain),
    Check("sums", accumulation.check_sums, _instruction),
    Check("bad-arguments", faults.check_bad_arguments),
    Check("too-many-tiles", faults.check_too_many_tiles),
    Check("host-entry", faults.check_host_entry, _family),
    Check("another-context", faults.check_another_context, _family),
    Check("wrong-device", faults.check_wrong_device, _family),
    Check("large-a", wide.check_large_a, _way_of_a),
    Check("large-b", wide.check_large_b, _layout),
    Check("large-c", wide.check_large_c, _family),
    Check("long-c", wide.check_long_c, _family_of_rcr),
)
