"""A process of a cluster with a Runtime of its own: ``python tests/ray/run_actor_member.py FILE RAY FAR_PORT``.

``RAY`` is what ``Runtime(ray=…)`` takes. It is told what to do as ``tests/attach_play.py`` is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from examples.far_side import FarSide
from tests.attach_play import obey
from tests.ray.run_actor_play import runtime_on

if __name__ == "__main__":
    obey(runtime_on(sys.argv[1], FarSide(int(sys.argv[3])), ray=sys.argv[2]))
