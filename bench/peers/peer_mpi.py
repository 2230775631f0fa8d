"""Open MPI on two processes, over TCP and over memory that they share: MPI_Allreduce in place, by mpi4py.

`mpirun` starts both processes; this script starts mpirun, and leads them.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import common
from common import Entry

GIVEN = common.arguments()
LINKS = {"tcp": "tcp,self", "shm": "vader,self"}
PEER = {"tcp": "Open MPI, tcp", "shm": "Open MPI, vader"}


def led(figure, links, count):
    """A function that has both processes make n calls; it returns when rank 0 has.

    Each reads how often from a pipe of its own: one that waited for the other in a call of MPI would keep a core busy, also
    while others are measured, since mpirun gives its processes groups that are not stopped with this one.
    """

    def make():
        folder = tempfile.mkdtemp()
        pipes = [os.path.join(folder, str(rank)) for rank in range(2)]
        for pipe in pipes:
            os.mkfifo(pipe)
        command = ["mpirun", "-np", "2", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", LINKS[links]]
        command += ["--mca", "btl_tcp_if_include", "lo"] if links == "tcp" else []
        # As root in a container; and its count of cores is not what is asked here.
        command += ["--allow-run-as-root", "--oversubscribe", sys.executable, __file__]
        command += ["--count", str(count), "--only", figure, "--meeting", folder]
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        orders = [open(pipe, "w", buffering=1) for pipe in pipes]  # which wait for those who read
        shutil.rmtree(folder)

        def repeat(n):
            for pipe in orders:
                pipe.write(f"{n}\n")
            if program.stdout.readline().strip() != "done":
                raise RuntimeError(f"{command} has ended")

        return repeat

    return make


def worker(count, folder):
    """Both processes: each reads how often to call, rank 0 says when that has been done. They end with who writes it."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    import numpy as np

    mine = np.zeros(count, np.float32)
    with open(os.path.join(folder, str(world.rank))) as orders:
        for line in orders:
            for _ in range(int(line)):
                world.Allreduce(MPI.IN_PLACE, mine)
            if world.rank == 0:
                print("done", flush=True)


def entries():
    for links in LINKS:
        for size, number in common.SUMS.items():
            figure = f"all_reduce_2p_{links}_{size}"
            yield Entry(figure, "µs", PEER[links], led(figure, links, number // 4))


def version():
    return subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout.split("\n")[0].split()[-1]


if __name__ == "__main__":
    if GIVEN.meeting:
        worker(GIVEN.count, GIVEN.meeting)
    else:
        common.main(GIVEN, list(entries()), "mpi4py", version=version)
        sys.stdout.flush()
        os._exit(0)
