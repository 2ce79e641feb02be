"""The section `model.boxes`: how the outputs of a detector become boxes."""

from typing import Literal, Self

from pydantic import Field, model_validator

from enginewright.core.params.section import Section, Share

Form = Literal["xyxy", "xywh", "cxcywh", "detr", "rtdetr", "yolov5", "yolov8", "end_to_end", "chosen"]
OF_QUERIES = ("detr", "rtdetr")  # forms whose boxes are shares, and are not found several times
CHOSEN_ALREADY = ("end_to_end", "chosen")  # forms of models that choose among their boxes themselves


class BoxesParams(Section, place="model.boxes"):
    form: Literal["auto"] | Form = "auto"
    unit: Literal["auto", "pixels", "shares"] = "auto"  # shares of the height and width of the model's input
    score: float = Field(default=0.05, ge=0, lt=1)  # a box needs more
    iou: Share = 0.5  # of two boxes of a class that overlap by more, the better one is kept
    most: int = Field(default=100, ge=1, le=1000)
    nms: Literal["outside", "graph"] = "outside"  # who chooses: the code after the engine, or the engine itself
    sure: float = Field(default=0.3, ge=0, lt=1)  # boxes that are shown, and compared with PyTorch's

    @model_validator(mode="after")
    def _chooses_once(self) -> Self:
        if self.chooses_in_graph and self.form in CHOSEN_ALREADY:
            raise ValueError(f"nms: graph chooses boxes, and those of the form {self.form} are chosen: set outside")
        return self

    @property
    def chooses_in_graph(self) -> bool:
        return self.nms == "graph"

    @model_validator(mode="after")
    def _shows_what_is_found(self) -> Self:
        if self.sure < self.score:
            raise ValueError(
                f"sure is {self.sure}, and boxes are found from score on, {self.score}: it may not be less"
            )
        return self
