from pydantic import Field

from enginewright.core.params.section import Section


class ValidationParams(Section, place="validation"):
    spot_samples: int = Field(ge=1)
    must_be_sure: bool = False
    must_know: bool = True
