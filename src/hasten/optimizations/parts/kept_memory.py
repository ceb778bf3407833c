"""Make glibc keep freed memory from within a script: the source of a function that the script calls when it starts.

glibc gives the end of its heap back when more than a threshold is free there, and requests it again at the next operation;
the kernel clears every page of it. The threshold follows the largest separate mapping that was freed. Under a plan with
lower precision, the first step still frees float32 blocks, so the threshold is twice as large as the later steps need. A
patched script computes in 16 bits from the first step on, and would lose a part of the gain to the kernel.
"""

from __future__ import annotations

from hasten.core.source_edits import SourceEdits
from hasten.core.system import glibc_version, read_c_library

_SOURCE = """\
def _keep_freed_memory():  # glibc would return it to the system, and request it again
    mallopt = getattr({ctypes.CDLL}(None), "mallopt", None)
    for option, value in ((-4, 0), (-1, -1), (-2, 128 << 20)) if mallopt else ():  # see malloc.h: mmaps, trimming, top pad
        mallopt(option, value)


if {sys.platform} == "linux":
    _keep_freed_memory()
"""


def pays_on_this_machine() -> bool:
    """Return whether tensors are in glibc's memory: on Linux without an accelerator."""
    import torch  # noqa: PLC0415 - allocator.py needs none

    return bool(glibc_version(read_c_library()[0])) and not torch.accelerator.is_available()


def write_kept_memory(script: SourceEdits) -> str:
    """Let a script keep freed memory from its start. Returns the change and its place."""
    return script.at_the_start(*_SOURCE.splitlines(), said="freed memory is kept")
