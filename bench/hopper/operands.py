"""Operands of a case on the GPU: as many sets as it takes to push each other out of the level-2 cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmill.layout import GROUP_K, find_layout, groups, int4_bytes, packed_strides, preshuffled_tiles
from gemmill.variant import INT4, find_variant

from hopper.cases import Case

if TYPE_CHECKING:
    import torch

ROTATED_BYTES = 260_000_000  # of inputs, several times the level-2 cache
MOST_SETS = 600
_OUT_BYTES = 2


def sets_of(case: Case) -> int:
    """Return how many sets of inputs are rotated."""
    return max(2, min(MOST_SETS, -(-ROTATED_BYTES // case.input_bytes)))


class Operands:
    """Random operands as they are stored, set by set.

    Attributes
    ----------
    a, b : torch.Tensor
        uint8 [sets, bytes]: codes in storage order; int4 two a byte, the even one in the high nibble.
    aq : torch.Tensor
        [sets, M * QK], float32 or fp8, in storage order.
    c : torch.Tensor
        uint8 [sets, bytes].
    lda, ldaq, ldb, ldc : int
        Packed leading dimensions, in elements.
    """

    def __init__(self, case: Case, device: str = "cuda", sets: int | None = None) -> None:
        import torch

        self.case = case
        self.sets = sets or sets_of(case)
        self._kinds = find_variant(case.variant)
        self._layout = find_layout(case.layout)
        self._types = {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "f32": torch.float32}
        random = torch.Generator(device=device).manual_seed(case.m + case.n + case.k)
        options: dict[str, Any] = {"device": device, "generator": random}
        m, n, k = case.shape
        strides = packed_strides(self._layout, m, n, k)
        self.lda, self.ldaq, self.ldb, self.ldc = strides.a, strides.aq, strides.b, strides.c

        def random_fp8(size: int, kind: str) -> torch.Tensor:
            values = torch.randn((self.sets, _pitch(size)), dtype=torch.float16, **options)
            return values.to(self._types[kind]).view(torch.uint8)[:, :size]

        if self._kinds.a == INT4:
            size = int4_bytes(m, k)
            self.a = torch.randint(0, 256, (self.sets, _pitch(size)), dtype=torch.uint8, **options)[:, :size]
        else:
            self.a = random_fp8(m * k, self._kinds.a)
        self.b = random_fp8(n * k, self._kinds.b)
        scales = torch.rand((self.sets, _pitch(m * groups(k))), **options) + 0.5
        self.aq = scales.to(self._types[self._kinds.aq])[:, : m * groups(k)]
        size = m * n * _OUT_BYTES
        self.c = torch.empty((self.sets, _pitch(size)), dtype=torch.uint8, device=device)[:, :size]
        self._expected: dict[bool, torch.Tensor] = {}

    def matrix_a(self, i: int) -> torch.Tensor:
        """Return A [M, K] of a set as float32 values."""
        import torch

        m, _, k = self.case.shape
        if self._kinds.a == INT4:
            flat = torch.stack((self.a[i] >> 4, self.a[i] & 15), 1).reshape(-1)[: m * k].float() - 8
        else:
            flat = self.fp8_a(i).float()
        return flat.view(k, m).T if self._layout.a_col else flat.view(m, k)

    def matrix_b(self, i: int) -> torch.Tensor:
        """Return B [K, N] of a set as float32 values."""
        flat = self.fp8_b(i).float()
        n, k = self.case.n, self.case.k
        return flat.view(n, k).T if self._layout.b_col else flat.view(k, n)

    def fp8_a(self, i: int) -> torch.Tensor:
        """Return A of a set in its fp8 type, flat, as stored."""
        return self.a[i].view(self._types[self._kinds.a])

    def fp8_b(self, i: int) -> torch.Tensor:
        """Return B of a set in its fp8 type, flat, as stored."""
        return self.b[i].view(self._types[self._kinds.b])

    def scales(self, i: int) -> torch.Tensor:
        """Return AQ [M, QK] of a set, in its own type."""
        m = self.case.m
        return self.aq[i].view(-1, m).T if self._layout.aq_col else self.aq[i].view(m, -1)

    def shuffled(self, tile_k: int) -> torch.Tensor:
        """Return AQ of every set as preshufflequant kernels read it: [sets, T, M, b], groups beyond QK zero."""
        import torch

        m = self.case.m
        tiles, b = preshuffled_tiles(self.case.k, tile_k)
        row_bytes = tiles * b * self.aq.element_size()
        plain = self.aq.contiguous().view(torch.uint8).view(self.sets, m, -1)
        whole = torch.zeros((self.sets, m, row_bytes), dtype=torch.uint8, device=self.aq.device)
        whole[:, :, : plain.shape[2]] = plain
        return whole.view(self.sets, m, tiles, -1).transpose(1, 2).contiguous().view(self.aq.dtype)

    def output(self, i: int, dtype: torch.dtype) -> torch.Tensor:
        """Return C [M, N] of a set, seen as a 16-bit type."""
        return self.c[i].view(dtype).view(self.case.m, self.case.n)

    def expected(self, scaled: bool) -> torch.Tensor:
        """Return C [M, N] of the first set by float32 arithmetic, with AQ or without."""
        if scaled not in self._expected:
            a = self.matrix_a(0)
            if scaled:
                a = a * self.scales(0).float().repeat_interleave(GROUP_K, 1)[:, : self.case.k]
            self._expected[scaled] = a @ self.matrix_b(0)
        return self._expected[scaled]


def _pitch(size: int) -> int:
    """Return the distance between sets: each begins where an allocation of its own could."""
    return -(-size // 256) * 256
