//! Checks that buffers can fit into memory.

use crate::{Cardinality, Error, Result};

/// More elements than any address space holds, whatever their size.
const MOST: u64 = 1 << 47;

/// Checks that `size` elements can be held at once. The check fails if the input has that many and no memory
/// holds them. If the length of the input is unknown, or fits into memory, buffers grow with the elements.
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
    if held as u64 > MOST { Err(Error::Parameter { operation, parameter, found, expected }) } else { Ok(()) }
}

/// Reserves memory for elements. Returns an error instead of aborting the process.
pub(crate) fn reserve<T>(operation: &'static str, list: &mut Vec<T>, elements: usize) -> Result<()> {
    // Reserving exactly the needed size would make each growth a reallocation.
    list.try_reserve(elements).map_err(|_| Error::Memory { operation, elements })
}
