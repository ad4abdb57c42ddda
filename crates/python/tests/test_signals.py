"""Under the trackers that find writes by signals: NumPy's own stores, system calls, and others who want to know of faults."""

import unittest

from common import Case

SIGNALS = ("protect", "emulate")

# Each program of its own: handlers of signals are of the whole process.
HEAD = """if True:
    import sys, errno, faulthandler, os, fermata, numpy as np
    area = fermata.Area("area", 1 << 21, store=sys.argv[1], tracking=sys.argv[2])
    assert area.mechanism == sys.argv[2], area.mechanism
"""

WRITES = (
    HEAD
    + """
    arrays = area.arrays(a=((100, 100), "f8"), b=((100, 100), "f8"), c=(10000, "i4"), d=(20000, "u1"), e=(5000, "c16"), f=(300, "S7"))
    plain = {name: array.copy() for name, array in arrays.items()}
    for round in range(3):
        for of in (arrays, plain):
            numbers = np.random.default_rng(round)
            a, b, c, d, e, f = of.values()
            numbers.random(out=a)
            np.multiply(a, 3, out=b)
            b += a.T
            np.matmul(a, a, out=b[:, ::-1])
            b[b > 20] = 0.5
            b[numbers.integers(0, 100, 50), numbers.integers(0, 100, 50)] -= 1
            c[:] = numbers.integers(-1000, 1000, c.size)
            c[1:9000:3].sort()
            np.cumsum(c, out=c)
            np.add.at(c, [1, 1, 5], 7)
            d[:] = np.frombuffer(numbers.bytes(d.size), "u1")
            d[3:15000:2] ^= 255
            np.sqrt(a.reshape(-1)[:5000], out=e.real)
            e[::-1] *= 1j
            f[:] = [b"%d" % number for number in c[:300]]
            np.put(a, [3, 4], [1, 2])
            np.copyto(a[10:20], a[30:40], where=a[50:60] > 0.5)
            memoryview(d)[5:10] = b"12345"
        area.commit()
    for name in arrays:
        assert arrays[name].tobytes() == plain[name].tobytes(), name
    del a, b, c, d, e, f, of, arrays
    area.close()
    area = fermata.Area("area", 1 << 21, store=sys.argv[1])
    for name, array in area.arrays().items():
        assert array.tobytes() == plain[name].tobytes(), name
    print("equal")
"""
)

SYSTEM_CALLS = (
    HEAD
    + """
    array = area.array(1 << 20, "u1")
    file = open("/dev/urandom", "rb", buffering=0)
    try:
        file.readinto(array[:50000])
        raise SystemExit("it was written past the tracker")
    except OSError as error:
        assert error.errno == errno.EFAULT, error
    area.expect_writes(array[:50000])
    assert file.readinto(array[:50000]) == 50000
    area.commit()
    expected = array.tobytes()
    assert len(set(expected[:50000])) == 256
    # In each cycle anew.
    try:
        file.readinto(array[:50000])
        raise SystemExit("it was written past the tracker")
    except OSError as error:
        assert error.errno == errno.EFAULT, error
    del array
    area.close()
    assert bytes(fermata.Area("area", 1 << 21, store=sys.argv[1]))[: 1 << 20] == expected
    print("expected")
"""
)

FAULTS = (
    HEAD
    + """
    if sys.argv[3] == "python":
        assert not faulthandler.is_enabled()
    array = area.array(1 << 20, "u1")
    array[::4096] = 1
    area.commit()
    array[::4096] = 2
    area.commit()
    print(array[::4096].sum(), flush=True)
    import ctypes
    ctypes.string_at(16)
"""
)


class Signals(Case):
    def each(self, program, *arguments, **options):
        for tracking in SIGNALS:
            with self.subTest(tracking):
                self.with_tracking(tracking)
                yield self.run_program(program, tracking, *arguments, **options)

    def test_all_ways_of_numpy_to_write_are_seen(self):
        for status, out, error in self.each(WRITES):
            self.assertEqual((status, out, error), (0, "equal\n", ""))

    def test_system_calls_must_be_expected(self):
        for status, out, error in self.each(SYSTEM_CALLS):
            self.assertEqual((status, out, error), (0, "expected\n", ""))

    def test_a_faulthandler_that_was_there_before_still_tells_of_others_faults(self):
        for status, out, error in self.each(FAULTS, "faulthandler", before=("-X", "faulthandler")):
            self.assertEqual((status, out), (-11, "512\n"))
            self.assertIn("Fatal Python error: Segmentation fault", error)
            self.assertIn("string_at", error)

    def test_a_fault_of_the_program_still_ends_it(self):
        for status, out, error in self.each(FAULTS, "python"):
            self.assertEqual((status, out, error), (-11, "512\n", ""))


if __name__ == "__main__":
    unittest.main()
