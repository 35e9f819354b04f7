"""What every part of the configuration tree is."""

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

WeightType = Literal["auto", "bf16", "fp16", "fp32", "int8", "int4"]
ActivationsType = Literal["auto", "fp32", "bf16", "int8"]
KVType = Literal["auto", "bf16", "fp32", "int8"]


class Settings(BaseModel):
    """Frozen, and closed: an unknown name is refused together with the nearest name that exists."""

    # what is refused may be an address with a password in it
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in data:
            if name not in cls.model_fields:
                near = difflib.get_close_matches(str(name), cls.model_fields, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"valid names: {', '.join(cls.model_fields)}"
                raise ValueError(f"unknown setting {str(name)!r}; {hint}")
        return data
