//! The check that buffers fit into memory.

use crate::{Cardinality, Error, Result};

/// The maximum number of elements that can be kept in memory. More do not fit into any address space, whatever their
/// size.
const MAX: u64 = 1 << 47;

/// Checks that `size` elements of a dataset of length `input` can be kept in memory at the same time. The check fails
/// only if the dataset has that many elements and no memory can hold them. Buffers grow with the elements, so a dataset
/// of unknown length, or one that fits into memory, passes the check with any `size`. The error contains `operation`
/// and `parameter`.
pub(crate) fn fits(
    operation: &'static str,
    parameter: &'static str,
    size: usize,
    input: Cardinality,
) -> Result<()> {
    let held = match input {
        Cardinality::Finite(n) => n.min(size),
        Cardinality::Infinite => size,
        Cardinality::Unknown => 0,
    };
    let (found, expected) = (format!("{size}, of a dataset of {input}"), "what memory can hold");
    if held as u64 > MAX { Err(Error::Parameter { operation, parameter, found, expected }) } else { Ok(()) }
}

/// Reserves memory for additional elements of a list. Returns an error, rather than aborting the process, if
/// there is not enough.
pub(crate) fn reserve<T>(operation: &'static str, list: &mut Vec<T>, elements: usize) -> Result<()> {
    // Reserving exactly the needed size would make each growth a reallocation.
    list.try_reserve(elements).map_err(|_| Error::Memory { operation, elements })
}
