"""Progress, tables, curves and the page of a run. Reports on the figures of parts are listed here."""

from gossamer.runs.report.aggregation import AggregationReport as AggregationReport
from gossamer.runs.report.base import REPORTS as REPORTS
from gossamer.runs.report.base import Folder as Folder
from gossamer.runs.report.base import Report as Report
from gossamer.runs.report.base import reports as reports
from gossamer.runs.report.evaluation import EvaluationReport as EvaluationReport
from gossamer.runs.report.masks import MaskReport as MaskReport
from gossamer.runs.report.mixing import MixingReport as MixingReport
from gossamer.runs.report.plots import Series as Series
from gossamer.runs.report.plots import chart as chart
from gossamer.runs.report.privacy import PrivacyReport as PrivacyReport
from gossamer.runs.report.secure import SecureReport as SecureReport
from gossamer.runs.report.shares import ShareReport as ShareReport
from gossamer.runs.report.visits import VisitReport as VisitReport
