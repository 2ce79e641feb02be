"""Make up what a validation found of the answers."""

from enginewright.measure.records import Agreement, Interval, Result


def accuracy(reference, graph, engine, around=0.01):
    """Return what the fields of a Validation are for an accuracy, or for one that was not measured."""
    about = {"task": "classification", "metric": "accuracy", "lacking": "no labels or no scores"}
    if engine is None:
        return about | {"results": ()}
    drop = reference - engine
    result = Result(
        name="accuracy",
        unit="%",
        higher_is_better=True,
        reference=reference,
        graph=graph,
        engine=engine,
        drop=drop,
        interval=Interval(low=drop - around, high=drop + around),
        samples=512,
        needed=512,
    )
    return about | {"results": (result,)}


def agreed(share, samples=512):
    interval = Interval(low=max(0, share - 0.01), high=min(1, share + 0.01))
    counted = {"among": f"{samples} images", "samples": samples, "needed": samples}
    return Agreement(name="top-1 agreement", share=share, interval=interval, **counted)
