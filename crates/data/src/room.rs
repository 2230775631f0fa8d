//! Refuses to hold more at once than memory can have.

use crate::{Cardinality, Error, Result};

/// More than any memory has addresses for, whatever the elements are.
const MOST: u64 = 1 << 47;

/// Refuses to hold `size` elements at once if the input has that many and no memory does. If its length is
/// unknown, or fits into memory, buffers grow with the elements.
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

/// Reserves memory for elements, with an error instead of the end of the process.
pub(crate) fn reserve<T>(operation: &'static str, list: &mut Vec<T>, elements: usize) -> Result<()> {
    // Less than exactly what is needed is enough to grow again and again.
    list.try_reserve(elements).map_err(|_| Error::Memory { operation, elements })
}
