//! Sums of squares over gradients of which each worker has the elements that it owns.

use crate::partition::BLOCK;
use crate::partition::Partition;
use crate::reduce::operands::Variable;
use distribute_base::Result;
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::failure;
use std::vec;

/// The squares of all blocks of all variables, in the order of their elements, so that their sum has the bits that one
/// worker with all of them gets. `mine` are those of this worker's elements. Of gradients by row, all workers have all.
///
/// # Errors
/// The same on all workers, where one is lost or late.
pub(crate) fn of_all(
    calling: &mut GroupCall<'_>,
    partition: &Partition,
    variables: &[Variable<'_>],
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
    let blocks = |number: usize, worker: usize| partition.of(number, worker).len().div_ceil(BLOCK);
    let numbers_of = || variables.iter().map(|variable| variable.index);
    let all_dense = || numbers_of().filter(|number| is_dense(*number));
    let expected =
        |worker| all_dense().map(|number| blocks(number, worker)).sum::<usize>() * size_of::<f64>();
    let come = calling.all_gather_sized("its norms", body.freeze(), expected).map_err(failure("minimize"))?;
    let mut of_workers: Vec<vec::IntoIter<f64>> =
        come.iter().map(|squares| numbers::<f64>(squares).into_owned().into_iter()).collect();
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
