"""The errors gemmill raises. Each text says what was needed, what came, and what would be accepted."""

from __future__ import annotations


class GemmillError(Exception):
    """Base of every error that gemmill raises on purpose."""


class ArgumentError(GemmillError, ValueError):
    """A caller's value is wrong: shape, dtype, layout, encoding, range."""


class UnsupportedError(GemmillError, NotImplementedError):
    """The request is well formed, but no kernel or backend can serve it."""


class KernelNotFound(GemmillError, LookupError):
    """No cache on the search path holds the kernel asked for."""


class CorruptObject(GemmillError):
    """A cache object does not verify: missing file, wrong hash or size, broken JSON."""


class Refused(GemmillError):
    """A cache object is whole but must not be loaded: untrusted place, wrong arch, untested, failed."""


class DeviceError(GemmillError, RuntimeError):
    """The kernel or its driver reported a failure while running."""


class CorruptObjectWarning(UserWarning):
    """A cache object was passed over because it does not verify."""
