"""A program that is killed at any point comes back as it was at one of its commits: the last that it knew of, or the one that it was at."""

import os
import random
import time
import unittest

import numpy as np
from common import Case

# Counts on from where it was, and says each number that is durable. All arrays follow from the number.
PROGRAM = """if True:
    import sys, fermata, numpy as np

    def write(arrays, n):
        arrays["all"][:] = n
        arrays["seen"][n % 1000] = n
        arrays["n"][...] = n

    way = sys.argv[2]
    area = fermata.Area("counter", 1 << 18, store=sys.argv[1], tracking=sys.argv[3])
    arrays = area.arrays(all=(2000, "i8"), seen=(1000, "i8"), n=((), "i8"))
    behind = None
    print("ready", flush=True)
    for n in range(int(arrays["n"]) + 1, 1 << 40):
        if way == "transaction":
            try:
                with area.transaction():
                    write(arrays, n + 7)
                    raise LookupError
            except LookupError:
                assert int(arrays["n"]) == n - 1
            with area.transaction(str(n)):
                write(arrays, n)
        else:
            write(arrays, n)
        if way == "commit":
            area.commit(str(n))
        if way == "behind":
            behind, before = (n, area.commit_behind()), behind
            if before is None:
                continue
            before[1].wait()
            print(before[0], flush=True)
        else:
            print(n, flush=True)
"""


class Killed(Case):
    def killed_at_any_point(self, way, tracking="auto"):
        self.with_tracking(tracking)
        numbers, reached = random.Random(way), 0
        rounds = 6 if "FERMATA_LONG" in os.environ else 4
        for round in range(rounds):
            child = self.program(PROGRAM, way, tracking)
            self.assertEqual(child.stdout.readline(), "ready\n", child.poll() and child.stderr.read())
            # On a busy host all others may have been killed before their first commit.
            first = child.stdout.readline() if round == rounds - 1 and reached == 0 else ""
            time.sleep(numbers.uniform(0.02, 0.25))
            child.kill()
            out, error = child.communicate(timeout=300)
            out = first + out
            self.assertEqual((child.returncode, error), (-9, ""))
            # A line may have been cut.
            durable = max((int(line) for line in out.split("\n")[:-1]), default=reached)
            with self.area("counter", 1 << 18) as area:
                arrays = area.arrays()
                if not arrays:
                    self.assertEqual(durable, 0)
                    continue
                before, reached = reached, int(arrays["n"])
                self.assertGreaterEqual(reached, durable, f"round {round}: went back behind a commit that had returned")
                self.assertGreaterEqual(durable, before)
                self.assertTrue((arrays["all"] == reached).all(), f"round {round}: not as at one commit")
                expected = np.zeros(1000, "i8")
                for n in range(max(1, reached - 999), reached + 1):
                    expected[n % 1000] = n
                self.assertTrue((arrays["seen"] == expected).all(), f"round {round}: not all numbers were seen")
                del arrays
        self.assertGreater(reached, 0, "nothing was ever committed")

    def test_between_commits(self):
        self.killed_at_any_point("commit")

    def test_while_commits_are_written_behind(self):
        self.killed_at_any_point("behind")

    def test_in_transactions_of_which_some_fail(self):
        self.killed_at_any_point("transaction")

    def test_under_emulation(self):
        self.killed_at_any_point("commit", "emulate")


if __name__ == "__main__":
    unittest.main()
