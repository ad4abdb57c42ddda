"""What the tests share: a store of each test's own, programs beside it, and how one says what this host cannot do."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
from contextlib import contextmanager, suppress

import fermata

PAGE = 4096


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.store = os.path.join(directory.name, "store")

    def area(self, name="area", nbytes=16 * PAGE, **options):
        return fermata.Area(name, nbytes, store=self.store, **options)

    def with_tracking(self, tracking):
        """Skips the test where this host has no such tracking."""
        try:
            self.area("trial", PAGE, tracking=tracking).close()
        except fermata.Error as error:
            print(f"skipped: {error}", file=sys.stderr)
            self.skipTest(str(error))

    def program(self, text, *arguments, before=()):
        """Starts a program with the store as its first argument."""
        return self.start([*before, "-c", text, self.store, *map(str, arguments)])

    def start(self, arguments):
        """Starts a Python; it is ended with the test, and so are its children."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen([sys.executable, *arguments], process_group=0, **pipes)
        self.addCleanup(end, child)
        return child

    def run_program(self, text, *arguments, **options):
        """Runs one to its end: its exit status, and what it wrote to stdout and stderr."""
        child = self.program(text, *arguments, **options)
        out, error = child.communicate(timeout=300)
        return child.returncode, out, error


def end(child):
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with child:
        pass


@contextmanager
def full_disk():
    """No file can grow beyond one page: the system refuses with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
