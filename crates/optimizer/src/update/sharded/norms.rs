//! Sums of squares of gradients, if each worker has only a range of the gradients.

use crate::reduce::operands::VariableOperands;
use distribute_base::Result;
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::failure;
use distribute_decisions::internal::{BLOCK, Partition};
use std::vec;

/// Returns the sums of squares of all blocks of all variables, in the order of elements. Their sum is therefore
/// bit-identical to that of a single worker with all elements. `mine` contains the sums for this worker's elements.
/// Sums of gradients by row are not exchanged, because all workers have them.
///
/// # Errors
/// - The same error on all workers: a worker disconnects or times out.
pub(crate) fn all_squares(
    calling: &mut GroupCall<'_>,
    partition: &Partition,
    variables: &[VariableOperands<'_>],
    mine: Vec<(usize, f64)>,
) -> Result<Vec<(usize, f64)>> {
    let is_dense = |number: usize| {
        variables
            .binary_search_by_key(&number, |variable| variable.index)
            .is_ok_and(|at| !variables[at].by_row())
    };
    let (dense, by_row): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(number, _)| is_dense(*number));
    let mut body = calling.buffers().take(dense.len() * size_of::<f64>());
    for (place, (_, square)) in body.bytes_mut().chunks_exact_mut(size_of::<f64>()).zip(&dense) {
        place.copy_from_slice(&square.to_ne_bytes());
    }
    let blocks = |number: usize, worker: usize| partition.range(number, worker).len().div_ceil(BLOCK);
    let numbers_of = || variables.iter().map(|variable| variable.index);
    let all_dense = || numbers_of().filter(|number| is_dense(*number));
    let expected =
        |worker| all_dense().map(|number| blocks(number, worker)).sum::<usize>() * size_of::<f64>();
    let received =
        calling.all_gather_sized("its norms", body.freeze(), expected).map_err(failure("minimize"))?;
    let mut of_workers: Vec<vec::IntoIter<f64>> =
        received.iter().map(|squares| numbers::<f64>(squares).into_owned().into_iter()).collect();
    let mut by_row = by_row.into_iter().peekable();
    let mut all = Vec::new();
    for number in numbers_of() {
        while let Some(square) = by_row.next_if(|(of, _)| *of == number) {
            all.push(square);
        }
        if is_dense(number) {
            for worker in partition.in_order(number) {
                let squares = of_workers[worker].by_ref().take(blocks(number, worker));
                all.extend(squares.map(|square| (number, square)));
            }
        }
    }
    Ok(all)
}
