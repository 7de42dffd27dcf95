"""Make torchvision importable beside a CPU build of torch: run by `make`, inside .venv only.

The index has torchvision as a build for CUDA. Beside a CPU build of torch its compiled operators do
not load, `import torchvision` fails for want of their names, and with it timm, open_clip and even
transformers. Where that is so, two of the names are declared just before torchvision is imported, in
this environment and in every process of it. The operators still do not work; nothing here uses them.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "_torchvision_operators"
HOOK = '''\
"""Declares the operators of torchvision that it cannot load, when it is about to be imported."""

import importlib.abc
import sys


class _Declare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                self.library.define(operator + signature)
            sys.modules[__name__].declared = self  # kept: what a library declares goes with it
        return None


sys.meta_path.insert(0, _Declare())
'''


def failure() -> str:
    """Why torchvision cannot be imported, or nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    return ran.stderr.strip().rpartition("\n")[2] if ran.returncode else ""


def main() -> None:
    """Write the two files, and see that they help."""
    if "operator torchvision::nms does not exist" not in failure():
        return
    packages = Path(sysconfig.get_paths()["purelib"])
    (packages / f"{NAME}.py").write_text(HOOK)
    (packages / f"{NAME}.pth").write_text(f"import {NAME}\n")
    if left := failure():
        sys.exit(f"torchvision cannot be imported: {left}")


if __name__ == "__main__":
    main()
