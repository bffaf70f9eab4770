"""What people look at: progress, tables, curves. Reports on the figures of parts are declared here, a line each."""

from gossamer.runs.report.base import REPORTS as REPORTS
from gossamer.runs.report.base import Folder as Folder
from gossamer.runs.report.base import Report as Report
from gossamer.runs.report.base import reports as reports
from gossamer.runs.report.masks import MaskReport as MaskReport
from gossamer.runs.report.mixing import MixingReport as MixingReport
from gossamer.runs.report.visits import VisitReport as VisitReport
