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
        said, complained = child.communicate(timeout=300)
        self.assertEqual((said, complained, child.returncode), (undisturbed, "", 0))
        self.assertEqual(starts, sorted(starts))
        self.assertTrue(any(0 < start < 3000 for start in starts), starts)


class Pages(Case):
    def test_the_arrays_of_the_page_for_newcomers_come_back(self):
        page = (EXAMPLES.parent.parent.parent / "docs" / "python.md").read_text()
        text = page.split("\n```python\n")[1].split("\n```")[0]
        program = "\n".join(
            [
                "import os, sys",
                "os.environ['FERMATA_STORE'] = sys.argv[1]",
                text,
                "print(int(arrays['step']), float(arrays['x'][0].sum()))",
            ]
        )
        for run in 1, 2:
            self.assertEqual(self.run_program(program), (0, f"{run} {1000.0 * run}\n", ""))


if __name__ == "__main__":
    unittest.main()
