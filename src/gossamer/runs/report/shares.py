"""Figures that are shares, such as what clipping takes from an update, and relative errors, shown in percent."""

from gossamer.runs.report.base import Report, reports


@reports("adapter_error")
@reports("clipped_length")
@reports("clipped")
class ShareReport(Report):
    """A share, in percent."""

    format = "percent"
