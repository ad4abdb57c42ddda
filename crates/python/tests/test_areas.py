"""Areas, arrays in them, and what is refused."""

import doctest
import errno
import os
import socket
import tempfile
import threading
import time
import unittest

import fermata
import numpy as np
from common import PAGE, Case, full_disk


def load_tests(_loader, tests, _pattern):
    tests.addTests(doctest.DocTestSuite(fermata))
    return tests


class Backups(Case):
    def opened_there(self, name, nbytes):
        """The area from the backup's store, once whoever receives has let go of it."""
        for _ in range(1000):
            try:
                return fermata.Area(name, nbytes, store=os.environ["FERMATA_TEST_BACKUP"])
            except fermata.Error as error:
                if "open already" not in str(error):
                    raise
            time.sleep(0.01)
        self.fail("it is not let go of")

    def test_an_area_opens_from_its_backup(self):
        with self.area("followed") as area:
            values = area.array(100, "i8")
            values[:] = 1
            with self.assertRaisesRegex(ValueError, "has no backup"):
                area.commit_replicated()
            area.back_up_to(os.environ["FERMATA_TEST_SOCKET"])
            values[:] = 2
            self.assertEqual(area.commit(), area.head)
            values[:50] = 3
            commit = area.commit_replicated("replicated")
            self.assertEqual(commit.wait(), area.head)
            values[:] = 4
        del values
        with self.opened_there("followed", 16 * PAGE) as area:
            self.assertEqual(area.array(100, "i8").sum(), 50 * 3 + 50 * 2)

    def test_a_backup_that_is_not_there_is_told(self):
        with self.area("alone") as area:
            area.array(1)[0] = 1
            with self.assertRaisesRegex(fermata.Error, "nowhere.*back_up_to") as told:
                area.back_up_to(self.store + "nowhere")
            self.assertIn("No such file", str(told.exception))
            area.stop_backing_up(self.store + "nowhere")
            area.commit()


class Lifetime(Case):
    def test_what_was_committed_comes_back_and_nothing_else(self):
        with self.area() as area:
            self.assertIsNone(area.head)
            grid = area.array((8, 8), "f8", offset=128)
            grid[3] = np.arange(8)
            first = area.commit("the first")
            self.assertEqual(area.head, first)
            grid[:] = -1
            del grid
        with self.area() as area:
            grid = area.array((8, 8), offset=128)
            self.assertEqual(area.head, first)
            self.assertEqual(grid[3].tolist(), list(range(8)))
            self.assertEqual(grid.sum(), 28)

    def test_memory_is_not_taken_from_under_an_array(self):
        area = self.area()
        part = area.array((4, 4), "i4")[1:, 2]
        with self.assertRaisesRegex(BufferError, r"still there \(1\)"):
            area.close()
        part[:] = 5
        area.commit()
        view = memoryview(area)
        with self.assertRaisesRegex(BufferError, r"still there \(2\)"):
            area.close()
        view.release()
        del part
        area.close()
        self.assertTrue(area.closed)
        area.close()

    def test_after_with_the_arrays_keep_the_memory(self):
        with self.area() as area:
            array = area.array(100, "i8")
            array[:] = 7
            area.commit()
        self.assertTrue(area.closed)
        self.assertEqual(array.sum(), 700)
        array[:] = 8
        for call in (area.commit, area.roll_back, area.drain, lambda: memoryview(area), lambda: area.head):
            with self.assertRaisesRegex(ValueError, "is closed"):
                call()
        with self.assertRaisesRegex(fermata.Error, "open already"):
            self.area()
        del array
        with self.area() as area:
            self.assertEqual(area.array(100, "i8").sum(), 700)

    def test_arrays_outlive_the_name_of_their_area(self):
        array = self.area().array(8, "u1")
        array[:] = 1
        self.assertEqual(array.sum(), 8)
        self.assertIsInstance(array.base.base.obj, fermata.Area)
        array.base.base.obj.commit()
        del array
        with self.area() as area:
            self.assertEqual(bytes(area)[:9], b"\1" * 8 + b"\0")

    def test_a_program_that_ends_has_written_what_it_committed(self):
        program = """if True:
            import ctypes, sys, fermata, numpy
            area = fermata.Area("area", 1 << 24, store=sys.argv[1])
            array = area.array(1 << 24, "u1")
            array[:] = numpy.random.default_rng(1).integers(0, 256, array.size, "u1")
            area.commit_behind()
            # An object that something keeps for ever is never closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(area))
        """
        self.assertEqual(self.run_program(program), (0, "", ""))
        with self.area(nbytes=1 << 24) as area:
            expected = np.random.default_rng(1).integers(0, 256, 1 << 24, "u1")
            self.assertTrue((area.array(1 << 24, "u1") == expected).all())

    def test_what_is_written_behind_a_commit_is_not_in_it(self):
        for tracking in "auto", "protect", "emulate":
            self.with_tracking(tracking)
            options = {"tracking": tracking, "only_stores": True, "copy_on_write": True}
            with self.area(tracking, 1 << 22, **options) as area:
                array = area.array(1 << 22, "u1")
                for n in range(1, 6):
                    array[:] = n
                    commit = area.commit_behind()
                    # Most of it is not copied yet.
                    array[::4096] = 255
                    area.roll_back()
                    self.assertTrue((array == n).all(), (tracking, n))
                    commit.wait()
                # It would keep the area open.
                del array
            with self.area(tracking, 1 << 22, **options) as area:
                self.assertTrue((area.array(1 << 22, "u1") == 5).all(), tracking)

    def test_a_program_that_ends_tells_of_a_commit_that_failed(self):
        program = """if True:
            import resource, sys, fermata, numpy
            area = fermata.Area("area", 1 << 20, store=sys.argv[1])
            area.array(1 << 20, "u1")[:] = numpy.random.default_rng(1).integers(0, 256, 1 << 20, "u1")
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            area.commit_behind()
        """
        status, out, error = self.run_program(program)
        self.assertEqual((status, out), (0, ""))
        self.assertIn("an earlier commit was not written", error)


class Arrays(Case):
    def test_a_table_brings_the_same_arrays_back(self):
        record = np.dtype([("id", "<u4"), ("at", "<f8", (2,)), ("when", "<M8[s]")])
        with self.area() as area:
            arrays = area.arrays(x=((3, 5), "f4"), step=((), ">i8"), none=((0, 4), "f8"), records=([6], record))
            arrays["x"][2, 4] = 1.5
            arrays["step"][...] = -3
            arrays["records"][5] = 9, (0.5, 0.25), "2026-01-02T03:04:05"
            self.assertTrue(all(array.ctypes.data % 64 == 0 for array in arrays.values()))
            area.commit()
            del arrays
        with self.area() as area:
            arrays = area.arrays(step=((), ">i8"), more=(10, "u1"))
            self.assertEqual(list(arrays), ["x", "step", "none", "records", "more"])
            self.assertEqual((arrays["x"].shape, arrays["x"].dtype.str, arrays["none"].shape), ((3, 5), "<f4", (0, 4)))
            self.assertEqual((arrays["x"][2, 4], arrays["step"][()]), (1.5, -3))
            self.assertEqual(arrays["records"].dtype, record)
            last = arrays["records"][5]
            self.assertEqual((last["id"], last["at"].tolist(), str(last["when"])), (9, [0.5, 0.25], "2026-01-02T03:04:05"))

    def test_arrays_that_were_made_outlive_a_roll_back(self):
        area = self.area()
        x = area.arrays(x=(4, "i8"))["x"]
        with self.assertRaises(LookupError), area.transaction():
            x[:] = 1
            area.arrays(y=(4, "i8"))["y"][:] = 2
            raise LookupError
        self.assertEqual(x.tolist(), [0] * 4)
        area.commit()
        del x
        area.close()
        with self.area() as area:
            self.assertEqual({name: array.tolist() for name, array in area.arrays().items()}, {"x": [0] * 4, "y": [0] * 4})

    def test_what_does_not_fit_the_table_changes_nothing(self):
        area = self.area()
        area.arrays(x=(4, "f8"))
        before = bytes(area)
        for wanted in ({"x": (5, "f8")}, {"x": (4, "f4")}, {"y": (2 * PAGE, "f8")}, {"y": ((-1, 2), "f8")}):
            with self.assertRaises(ValueError):
                area.arrays(**wanted)
        with self.assertRaisesRegex(ValueError, "room for 4096"):
            area.arrays(**{f"a_rather_long_name_{n}": (1, "u1") for n in range(200)})
        with self.assertRaises(TypeError):
            area.arrays(objects=(3, object))
        self.assertEqual(bytes(area), before)

    def test_a_layout_of_ones_own_is_not_taken_for_a_table(self):
        area = self.area()
        for first in (b"mine", b"fermata arrays 1\n{'x': (1, 2)}", b"fermata arrays 1\n[1]", b"fermata arrays 1\n{'x': ((1,), 'what', 0)}"):
            with memoryview(area) as memory:
                memory[:PAGE] = first.ljust(PAGE, b"\0")
            with self.assertRaisesRegex(ValueError, "something else than a table"):
                area.arrays(x=(1, "u1"))

    def test_arrays_lie_within_the_area(self):
        area = self.area(nbytes=PAGE)
        self.assertEqual(area.array(PAGE, "u1").nbytes, PAGE)
        for arguments in ((PAGE + 1, "u1"), (1, "f8", PAGE - 7), (1, "u1", -1), ((2, -1), "u1"), (2**70, "u1")):
            with self.assertRaises(ValueError):
                area.array(*arguments)
        for arguments in ((1, object), ("2", "u1"), (1.5, "u1")):
            with self.assertRaises(TypeError):
                area.array(*arguments)


class Commits(Case):
    def test_how_many_are_kept_is_said_when_it_is_opened_or_later(self):
        with self.area(keep_last=100) as area:
            area.array(8, "i8")[:] = 1
            area.commit()
            area.keep_last(50)
            last = area.commit()
            with self.assertRaises(OverflowError):
                area.keep_last(-1)
        with self.assertRaisesRegex(ValueError, "is closed"):
            area.keep_last(1)
        with self.area() as area:
            self.assertEqual((area.head, area.array(8, "i8").sum()), (last, 8))

    def test_roll_back(self):
        area = self.area()
        array = area.array(PAGE, "u4")
        array[:] = 1
        area.commit()
        array[::700] = 2
        area.roll_back()
        self.assertTrue((array == 1).all())

    def test_transactions(self):
        area = self.area()
        array = area.array(8, "i8")
        with area.transaction("one") as same:
            self.assertIs(same, area)
            array[:] = 1
        first = area.head
        self.assertIsNotNone(first)
        for error in (ZeroDivisionError, KeyboardInterrupt):
            with self.assertRaises(error), area.transaction():
                array[:] = 2
                raise error
            self.assertEqual((array.tolist(), area.head), ([1] * 8, first))
        with area.transaction():
            array[:] = 3
            other = self.area("other")
            for call in (area.commit, area.commit_behind, area.roll_back, lambda: fermata.commit_together(other, area)):
                with self.assertRaisesRegex(RuntimeError, "in a transaction"):
                    call()
            with self.assertRaisesRegex(RuntimeError, "in a transaction"), area.transaction():
                self.fail("it was begun")
        area.roll_back()
        self.assertEqual(array.tolist(), [3] * 8)

    def test_no_thread_commits_within_the_transaction_of_another_one(self):
        area = self.area()
        array = area.array(2, "i8")
        with area.transaction():
            array[:] = 100, 0
        over = threading.Event()
        refused = []

        def commit():
            while not over.is_set():
                try:
                    area.commit_behind()
                except RuntimeError as error:
                    refused.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            for _ in range(20):
                before = len(refused)
                with self.assertRaises(LookupError), area.transaction():
                    array[0] -= 150
                    while len(refused) == before:
                        time.sleep(0.001)
                    raise LookupError
                self.assertEqual(array.tolist(), [100, 0])
        finally:
            over.set()
            thread.join()
        # The last ones may not be written yet, and the store goes with the test.
        area.drain()
        self.assertTrue(all("in a transaction" in str(error) for error in refused))

    def test_commits_behind_the_program(self):
        area = self.area()
        array = area.array(PAGE, "u8")
        commits = []
        for n in range(5):
            array[n * 512 : (n + 2) * 512] = n + 1
            commits.append(area.commit_behind(f"number {n}"))
        ids = [commit.wait() for commit in commits]
        self.assertTrue(all(commit.done() for commit in commits))
        self.assertEqual((len(set(ids)), area.head), (5, ids[-1]))
        del array
        area.close()
        with self.area() as area:
            self.assertEqual(area.array(PAGE, "u8")[::512].tolist(), [1, 2, 3, 4, 5, 5, 0, 0])

    def test_two_areas_at_one_instant(self):
        one, two = self.area("one"), self.area("two")
        one.array(1, "u8")[0] = two.array(1, "u8")[0] = 5
        ids = fermata.commit_together(two, one)
        self.assertEqual(ids, [two.head, one.head])
        self.assertNotEqual(*ids)
        with self.assertRaisesRegex(ValueError, "twice"):
            fermata.commit_together(one, two, one)
        two.close()
        with self.assertRaisesRegex(ValueError, "two is closed"):
            fermata.commit_together(one, two)
        one.close()
        with self.area("one") as area:
            self.assertEqual(bytes(area)[:8], (5).to_bytes(8, "little"))

    def test_parts_are_left_out_taken_up_and_emptied(self):
        area = self.area()
        arrays = area.arrays(kept=(PAGE, "u1"), scratch=(4 * PAGE, "u1"))
        arrays["kept"][:] = arrays["scratch"][:] = 1
        area.exclude(arrays["scratch"])
        area.commit()
        del arrays
        area.close()
        area = self.area()
        scratch = area.arrays()["scratch"]
        # The pages that lie in it wholly: the array begins 4096 + 4096 bytes behind the table.
        self.assertEqual(scratch.sum(), 0)
        scratch[:] = 2
        area.include(scratch)
        area.commit()
        del scratch
        area.close()
        area = self.area()
        scratch = area.arrays()["scratch"]
        self.assertEqual(scratch.sum(), 8 * PAGE)
        area.discard(slice(3 * PAGE, 4 * PAGE))
        self.assertEqual(scratch.sum(), 6 * PAGE)
        for part in (slice(0, 8, 2), scratch[::2], np.zeros(8), b"elsewhere"):
            with self.assertRaises(ValueError):
                area.exclude(part)
        for part in (5, None, "text"):
            with self.assertRaises(TypeError):
                area.expect_writes(part)

    def test_system_calls_that_write_into_an_array(self):
        area = self.area()
        array = area.array(3 * PAGE, "u1")
        content = np.arange(3 * PAGE) % 251
        for round in range(1, 4):
            with tempfile.TemporaryFile(buffering=0) as file:
                file.write((content + round).astype("u1").tobytes()[: 2 * PAGE])
                file.seek(0)
                self.assertEqual(file.readinto(array[: 2 * PAGE]), 2 * PAGE)
            left, right = socket.socketpair()
            with left, right:
                left.sendall((content + round).astype("u1").tobytes()[2 * PAGE :])
                self.assertEqual(right.recv_into(array[2 * PAGE :], flags=socket.MSG_WAITALL), PAGE)
            area.commit()
        del array
        area.close()
        with self.area() as area:
            self.assertTrue((area.array(3 * PAGE, "u1") == (content + 3).astype("u1")).all())


class Threads(Case):
    def test_threads_commit_one_after_the_other(self):
        area = self.area()
        array, lock = area.array((4, 512), "i8"), threading.Lock()

        def work(row):
            for n in range(1, 21):
                with lock:
                    array[row] = n
                area.commit()

        threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        del array
        area.close()
        with self.area() as area:
            self.assertTrue((area.array((4, 512), "i8") == 20).all())

    def test_other_threads_run_while_one_waits_for_the_store(self):
        area = self.area(nbytes=1 << 26)
        array = area.array(1 << 26, "u1")
        ticks, ended = [], threading.Event()

        def tick():
            while not ended.wait(0.002):
                ticks.append(None)

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            for seed in range(2):
                array[:] = np.random.default_rng(seed).integers(0, 256, array.size, "u1")
                before = len(ticks)
                wait = area.commit_behind().wait if seed == 0 else area.commit
                wait()
                self.assertGreater(len(ticks), before + 3)
        finally:
            ended.set()
            thread.join()


class Refusals(Case):
    def test_arguments(self):
        for arguments, options in [(("a", 0), {}), (("a", -1), {}), (("a", 1), {"tracking": "magic"})]:
            with self.assertRaises(ValueError):
                fermata.Area(*arguments, store=self.store, **options)
        for arguments in [(), ("a",), (1, 1), ("a", "1"), ("a", 1.5), ("a", 1, self.store)]:
            with self.assertRaises(TypeError):
                fermata.Area(*arguments)
        with self.assertRaises(TypeError):
            self.area().commit(5)

    def test_what_the_store_refuses(self):
        for name in ("", "a/b", "-a"):
            with self.assertRaisesRegex(fermata.Error, "cannot have this name"):
                self.area(name)
        self.area(nbytes=PAGE).close()
        self.area(nbytes=PAGE).commit()
        with self.assertRaisesRegex(fermata.Error, "it has 4096 bytes, not 8192"):
            self.area(nbytes=2 * PAGE)
        with self.assertRaises(fermata.Error) as raised:
            fermata.Area("a", 1, store="/proc/nowhere")
        self.assertIsInstance(raised.exception, OSError)
        self.assertEqual(raised.exception.errno, errno.ENOENT)

    def test_a_full_disk_loses_nothing(self):
        area = self.area(nbytes=1 << 20)
        array = area.array(1 << 20, "u1")
        area.commit()
        array[:] = np.random.default_rng(3).integers(0, 256, array.size, "u1")
        expected = array.copy()
        with full_disk(), self.assertRaises(fermata.Error) as raised:
            area.commit()
        self.assertEqual(raised.exception.errno, errno.EFBIG)
        with full_disk():
            commit = area.commit_behind()
            self.assertRaises(fermata.Error, commit.wait)
        self.assertTrue(commit.done())
        with self.assertRaisesRegex(fermata.Error, "an earlier commit was not written"):
            area.commit()
        area.commit()
        array[:] = 0
        with full_disk():
            array[::2] = 1
            area.commit_behind()
            with self.assertRaisesRegex(fermata.Error, "an earlier commit was not written"):
                area.drain()
        area.drain()
        area.roll_back()
        self.assertTrue((array == expected).all())

    def test_leaving_an_area_tells_of_a_commit_that_failed_behind(self):
        def fails(area):
            area.array(1 << 20, "u1")[:] = np.random.default_rng(4).integers(0, 256, 1 << 20, "u1")
            area.commit_behind()

        area = self.area(nbytes=1 << 20)
        with full_disk(), self.assertRaisesRegex(fermata.Error, "File too large"), area:
            fails(area)
        self.assertTrue(area.closed)
        area = self.area(nbytes=1 << 20)
        # But not in place of what the program has to tell.
        with full_disk(), self.assertRaises(LookupError), area:
            fails(area)
            raise LookupError
        self.assertTrue(area.closed)


if __name__ == "__main__":
    unittest.main()
