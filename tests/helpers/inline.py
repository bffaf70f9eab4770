"""A launcher that runs jobs in this process: a sweep without child processes, in any order."""

from gossamer.runs.jobs import Ended, Job


class Inline:
    """Runs each job when it is waited for.

    Args:
        at_once: the number of jobs that are accepted
        last_first: whether the job that was submitted last ends first
    """

    def __init__(self, at_once: int = 1, last_first: bool = False) -> None:
        self.at_once, self.last_first = at_once, last_first
        self.waiting: list[Job] = []
        self.done: list[str] = []

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *error: object) -> None:
        self.waiting.clear()

    @property
    def running(self) -> int:
        """The number of jobs that were submitted and have not ended."""
        return len(self.waiting)

    def accepts(self, job: Job) -> bool:
        """Return whether there is room."""
        return len(self.waiting) < self.at_once

    def submit(self, job: Job) -> None:
        """Keep a job."""
        self.waiting.append(job)

    def wait(self, seconds: float) -> list[Ended]:
        """Run one job; its log is empty."""
        job = self.waiting.pop(-1 if self.last_first else 0)
        self.done.append(job.name)
        try:
            return [Ended(job, job.function(*job.args))]
        except Exception as error:
            return [Ended(job, error=repr(error))]
