"""What people look at: progress, tables, curves. Reports on the figures of parts are declared here, a line each."""

from gossamer.report.base import REPORTS as REPORTS
from gossamer.report.base import Folder as Folder
from gossamer.report.base import Report as Report
from gossamer.report.base import reports as reports
from gossamer.report.masks import MaskReport as MaskReport
from gossamer.report.mixing import MixingReport as MixingReport
from gossamer.report.visits import VisitReport as VisitReport
