"""The examples do what they say."""

import pathlib
import re
import time
import unittest

from common import Case

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class Heat(Case):
    def heat(self, store):
        child = self.start([EXAMPLES / "heat.py", "--size", "60", "--steps", "3000", "--every", "10", "--store", store])
        return child, int(re.fullmatch(r"from step (\d+)\n", child.stdout.readline())[1])

    def test_a_plate_that_was_killed_again_and_again_is_as_warm_as_one_that_was_not(self):
        warm, _ = self.heat(self.store + "-undisturbed")
        undisturbed = warm.communicate(timeout=300)[0]
        self.assertIn("after 3000 steps", undisturbed)
        starts = []
        for n in range(12):
            child, step = self.heat(self.store)
            starts.append(step)
            # Each begins at 0 as long as no commit was ready before.
            time.sleep(0.03 * 1.4**n)
            child.kill()
            child.communicate()
        child, step = self.heat(self.store)
        self.assertEqual(child.communicate(timeout=300)[0], undisturbed)
        self.assertEqual(starts, sorted(starts))
        self.assertTrue(any(0 < start < 3000 for start in starts), starts)


if __name__ == "__main__":
    unittest.main()
