"""Heat that spreads over a plate. Kill it whenever you like (Ctrl-C, kill -9, the power switch) and start it again: it goes on from the last commit.

    python3 heat.py [--size 500] [--steps 20000] [--store DIRECTORY]
"""

import argparse

import fermata

arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
arguments.add_argument("--size", type=int, default=500, help="points on each side")
arguments.add_argument("--steps", type=int, default=20000)
arguments.add_argument("--every", type=int, default=100, help="steps from commit to commit")
arguments.add_argument("--store", help="a directory; the user's own store if this is not given")
options = arguments.parse_args()

size = options.size
# Two plates, the number of steps, and the table of the arrays.
with fermata.Area(f"heat-{size}", 2 * 8 * size * size + 16384, store=options.store) as area:
    arrays = area.arrays(plates=((2, size, size), "f8"), step=((), "i8"))
    plates, step = arrays["plates"], arrays["step"]
    if area.head is None:
        # One hot edge; it stays so.
        plates[:, 0] = 100
        area.commit("the beginning")
    print(f"from step {step}", flush=True)

    behind = None
    while step < options.steps:
        old, new = plates[step % 2], plates[(step + 1) % 2]
        new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) / 4
        step += 1
        if step % options.every == 0:
            # What was committed before is durable; this one is written while the next steps are computed.
            if behind is not None:
                behind.wait()
            behind = area.commit_behind(f"step {step}")
    area.commit(f"step {step}")
    print(f"after {step} steps the plate has {plates[step % 2].mean():.9f} degrees", flush=True)
