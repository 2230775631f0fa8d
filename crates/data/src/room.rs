//! The check that buffers fit into memory.

use crate::{Cardinality, Error, Result};

/// The maximum number of elements that can be kept in memory. More do not fit into any address space, whatever their
/// size.
const MAX: u64 = 1 << 47;

/// Checks that a buffer of up to `size` elements of a dataset of length `input` can be kept in memory. A buffer never
/// has more elements than the dataset, so the check fails only if both numbers exceed what any memory can hold. A
/// dataset of unknown length passes the check with any `size`. The error contains `operation` and `parameter`.
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
