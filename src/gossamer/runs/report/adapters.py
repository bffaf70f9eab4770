"""The report on low-rank adapters: the error of averaging their two matrices separately."""

from gossamer.runs.report.base import Report, reports


@reports("adapter_error")
class AdapterErrorReport(Report):
    """How far the product of the mean matrices is from the mean product, relative to the step of the mean product."""

    format = "percent"
