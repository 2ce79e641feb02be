"""A made-up search of int8."""

from enginewright.precision.records import Search, SearchedLayer, Step


def step_of(spared, used, work, **changes):
    plain = {"cosine": 1, "relative_error": 0, "agreement": None, "metric_drop": None, "looked_at": 1}
    return Step(**plain | {"spared": spared, "spent": used, "work": work} | changes)


def search_of(losses, work, path, spared):
    """Return a search that measured these losses by layer, and tried these steps."""
    return Search(
        precision="int8",
        calibration="",
        model="",
        rescue="",
        layers=tuple(SearchedLayer(name=name, op_type="Conv", work=work, loss=loss) for name, loss in losses.items()),
        samples=(8, 16, 32),
        path=tuple(path),
        spared=tuple(spared),
    )
