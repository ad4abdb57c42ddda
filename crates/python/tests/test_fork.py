"""A child of fork has neither the memory nor the thread that writes."""

import os
import unittest

import fermata
from common import Case

# The child's part, which ends it; then the parent goes on.
HEAD = """if True:
    import os, signal, sys, fermata, multiprocessing, warnings
    warnings.simplefilter("ignore")
    area = fermata.Area("area", 1 << 16, store=sys.argv[1])
    array = area.array(1 << 13, "u8")
    array[:] = 1
    area.commit()

    def ended(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

CALLS = (
    HEAD
    + """
    commit = area.commit_behind()
    child = os.fork()
    if child == 0:
        calls = [commit.wait, commit.done, area.commit, area.commit_behind, area.roll_back, area.drain, area.close, lambda: memoryview(area), lambda: area.head,
            lambda: area.exclude(slice(0, 1)), lambda: fermata.commit_together(area), lambda: fermata.Area("another", 1, store=sys.argv[1])]
        for call in calls:
            try:
                call()
            except fermata.Error:
                pass
            else:
                os._exit(1)
        # Its end takes nothing away, and waits for nobody.
        del array, area, calls, call
        sys.exit(7)
    assert ended(child) == 7
    array[:] = 2
    area.commit()
    print(int(array.sum()))
"""
)

TOUCH = (
    HEAD
    + """
    child = os.fork()
    if child == 0:
        array[0] = 5
        os._exit(0)
    assert ended(child) == -signal.SIGSEGV
    print(int(array.sum()))
"""
)

MULTIPROCESSING = (
    HEAD
    + """
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for row, square in enumerate(pool.map(abs, range(-8, 0))):
            array[row] = square
    area.commit()
    print(int(array[:8].sum()))
"""
)


# A worker that nobody ends when the parent is killed.
ORPHAN = (
    HEAD
    + """
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
    signal.pause()
"""
)


class Fork(Case):
    def test_a_child_that_outlives_its_parent_does_not_keep_the_area(self):
        parent = self.program(ORPHAN)
        child = int(parent.stdout.readline())
        with self.assertRaisesRegex(fermata.Error, "open already"):
            self.area(nbytes=1 << 16)
        parent.kill()
        parent.wait()
        os.kill(child, 0)
        with self.area(nbytes=1 << 16) as area:
            self.assertEqual(area.array(1 << 13, "u8").sum(), 8192)

    def test_calls_in_a_child_are_errors_and_its_end_is_harmless(self):
        self.assertEqual(self.run_program(CALLS), (0, "16384\n", ""))
        with self.area(nbytes=1 << 16) as area:
            self.assertEqual(area.array(1 << 13, "u8").sum(), 16384)

    def test_a_child_that_touches_an_array_ends(self):
        self.assertEqual(self.run_program(TOUCH), (0, "8192\n", ""))

    def test_children_that_compute_give_their_results_back(self):
        self.assertEqual(self.run_program(MULTIPROCESSING), (0, "36\n", ""))


if __name__ == "__main__":
    unittest.main()
