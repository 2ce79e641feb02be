"""Make ready for `dvc repro`: check params.yaml, which DVC's own messages say less of, and mend what a kill left."""

import sys
from pathlib import Path

from enginewright.core.errors import sentence_of
from enginewright.core.process import outlive_crashes


def make_ready() -> None:
    from enginewright.core.installing import old_name_hint
    from enginewright.core.params.all import Params
    from enginewright.core.version import require_new_enough, upgrade_hint
    from enginewright.pipeline.parameters import complete_for_dvc
    from enginewright.pipeline.recovery import mend_after_a_kill, mend_after_a_power_cut

    require_new_enough()
    for hint in filter(None, (upgrade_hint(), old_name_hint())):
        print(hint, file=sys.stderr)
    if added := complete_for_dvc(Params.read()):
        print(added, file=sys.stderr)
    for sentence in (*mend_after_a_kill(Path()), *mend_after_a_power_cut(Path())):
        print(sentence, file=sys.stderr)


outlive_crashes("params.yaml")  # such as the reader of YAML, on thousands of brackets within each other
try:
    make_ready()
except Exception as error:
    if said := sentence_of(error):
        sys.exit(said)
    raise
