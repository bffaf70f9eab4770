"""Figures that are shares, such as what clipping takes from an update. They are shown in percent."""

from gossamer.runs.report.base import Report, reports


@reports("clipped_length")
@reports("clipped")
class ShareReport(Report):
    """A share, in percent."""

    format = "percent"
