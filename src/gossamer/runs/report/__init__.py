"""Progress, tables, curves and the page of a run. Reports on the figures of parts are listed here."""

from gossamer.runs.report.base import REPORTS as REPORTS
from gossamer.runs.report.base import Folder as Folder
from gossamer.runs.report.base import Report as Report
from gossamer.runs.report.base import reports as reports
from gossamer.runs.report.part_reports import AggregationReport as AggregationReport
from gossamer.runs.report.part_reports import EvaluationReport as EvaluationReport
from gossamer.runs.report.part_reports import MaskReport as MaskReport
from gossamer.runs.report.part_reports import MixingReport as MixingReport
from gossamer.runs.report.part_reports import PrivacyReport as PrivacyReport
from gossamer.runs.report.part_reports import SecureReport as SecureReport
from gossamer.runs.report.part_reports import ShareReport as ShareReport
from gossamer.runs.report.part_reports import VisitReport as VisitReport
from gossamer.runs.report.plots import Series as Series
from gossamer.runs.report.plots import chart as chart
