//! Whether what an operation has to hold at once can be in memory at all.

use crate::{Cardinality, Error, Result};

/// More than any memory has addresses for, whatever the elements are.
const MOST: u64 = 1 << 47;

/// Refuses to hold `size` elements at once where the input has as many and no memory does. Where its length isn't known,
/// or is what memory may hold, buffers grow with what is there.
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

/// Room for so many, or an error instead of the process's end.
pub(crate) fn reserve<T>(operation: &'static str, list: &mut Vec<T>, elements: usize) -> Result<()> {
    // Less than exactly what is needed is enough to grow again and again.
    list.try_reserve(elements).map_err(|_| Error::Memory { operation, elements })
}
