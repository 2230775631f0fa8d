"""Makes the files beside it: `python3 make.py` with numpy. Elements of all arrays are 0 to 5, changed as below."""

import numpy as np
from numpy.lib import format

DTYPES = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()


def array(code):
    x = np.arange(6).reshape(2, 3)
    match code[0]:
        case "b":
            return (x % 2).astype(code)
        case "i":
            return (x - 2).astype(code)
        case "f":
            return (x / 2 - 1).astype(code)
        case "c":
            return (x - 1j * x).astype(code)
    return x.astype(code)


def save(name, x, version=(1, 0)):
    with open(f"{name}.npy", "wb") as file:
        format.write_array(file, x, version=version)


for code in DTYPES:
    save(f"{code}-little", array(code))
    save(f"{code}-big", np.asfortranarray(array(code).astype(f">{code}")))
save("version-2", array("f4"), (2, 0))
save("version-3", array("f4"), (3, 0))
save("scalar", np.float64(2.5))
save("empty", np.zeros((3, 0), "f4"))
save("text", np.array(["a"]))
np.savez("plain.npz", x=array("f4"), y=array("i8"))
np.savez_compressed("compressed.npz", x=array("f4"), y=array("i8"))
