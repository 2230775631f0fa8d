//! Gradients by row of tables that the workers store together. Each row is sent to the worker that owns it, which sums
//! it over all replicas.

use crate::parameters::Parameters;
use crate::reduce::operands::{Summed, VariableOperands};
use crate::reduce::{Weighted, row_records};
use bytes::Bytes;
use distribute_base::internal::{ReplicaGradient, Rows};
use distribute_base::{Error, Result};
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::failure;
use std::borrow::Cow;

/// Sends the rows of the given tables to their owners. Adds to `summed` the rows that this worker owns, from the
/// replicas of all workers.
///
/// # Errors
/// - The same error on all workers: a worker disconnects, times out or fails.
/// - [`Error::Tensor`]: a worker has sent data that does not encode rows.
/// - An error on this worker only: its own rows cannot be split by owner.
pub(crate) fn exchange<'b>(
    calling: &mut GroupCall<'_>,
    parameters: &'b Parameters,
    tables: &[usize],
    mine: &[Weighted<'b>],
    weights: &[f64],
    summed: &mut [Summed<'b>],
) -> Result<()> {
    let world = calling.world();
    // By owner, replica and table.
    let mut parts = vec![vec![Vec::with_capacity(tables.len()); mine.len()]; world.workers()];
    for (replica, (_, gradients)) in mine.iter().enumerate() {
        for table in tables {
            let split = match (&gradients[*table], &parameters.owners[*table]) {
                (Some(ReplicaGradient::Rows(rows)), Some(owners)) => {
                    owners.split(rows, world.workers())?.into_iter().map(Some).collect()
                }
                _ => vec![None; world.workers()],
            };
            for (part, rows) in parts.iter_mut().zip(split) {
                part[replica].push(rows.map(ReplicaGradient::Rows));
            }
        }
    }
    let own = std::mem::take(&mut parts[world.worker()]);
    let every: Vec<usize> = (0..tables.len()).collect();
    let buffers = calling.buffers().clone();
    let record = |worker: usize| {
        let replicas: Vec<&[Option<ReplicaGradient>]> = parts[worker].iter().map(Vec::as_slice).collect();
        row_records::encode(&replicas, &every, parameters.wire(), &buffers)
    };
    let received = calling.all_to_all_bytes("its rows", record).map_err(failure("minimize"))?;
    let of_tables: Vec<_> =
        tables.iter().map(|table| (&parameters.variables[*table].1, parameters.heights[*table])).collect();
    let mut weights = weights.iter();
    for (worker, record) in received.iter().enumerate() {
        let of_worker = if worker == world.worker() {
            own.clone()
        } else {
            let rows =
                row_records::decode(record, world.replicas_of(worker).len(), &of_tables, parameters.wire())
                    .map_err(|source| Error::Tensor { operation: "minimize", source })?;
            let gradient = |rows: Option<Rows>| rows.map(ReplicaGradient::Rows);
            rows.into_iter().map(|of_replica| of_replica.into_iter().map(gradient).collect()).collect()
        };
        for (at, table) in tables.iter().enumerate() {
            let rows = of_worker.iter().map(|of_replica| match of_replica.get(at) {
                Some(Some(ReplicaGradient::Rows(rows))) => rows.rows.as_slice(),
                _ => &[],
            });
            parameters.owners[*table].iter().for_each(|owners| owners.count(rows.clone()));
        }
        for (of_replica, weight) in of_worker.into_iter().zip(&mut weights) {
            for (table, gradient) in tables.iter().zip(of_replica) {
                summed[*table].push((*weight, gradient.map(Cow::Owned)));
            }
        }
    }
    Ok(())
}

/// Adds the sums of squares of the rows that other workers own to `mine`, which contains those of this worker's rows.
/// The result is in the order of rows, so its total is bit-identical to that of a single worker. `calling` is called
/// only if a variable has such rows; if it returns `None`, there are no other workers.
///
/// # Errors
///
/// - The same error on all workers: a worker disconnects or times out.
pub(crate) fn all_squares<'c>(
    calling: impl FnOnce() -> Option<GroupCall<'c>>,
    parameters: &Parameters,
    variables: &[VariableOperands<'_>],
    mine: Vec<(usize, f64)>,
) -> Result<Vec<(usize, f64)>> {
    let is_routed =
        |variable: &&VariableOperands<'_>| variable.by_row() && parameters.owners[variable.index].is_some();
    let routed: Vec<_> = variables.iter().filter(is_routed).collect();
    let Some(mut calling) = (if routed.is_empty() { None } else { calling() }) else { return Ok(mine) };
    let is_of = |number: usize| routed.iter().any(|variable| variable.index == number);
    let (own, others): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(number, _)| is_of(*number));
    let mut own = own.into_iter().peekable();
    let mut record = Vec::new();
    for variable in &routed {
        let squares = std::iter::from_fn(|| own.next_if(|(number, _)| *number == variable.index));
        let rows = variable.rows().unwrap_or_default();
        let pairs: Vec<_> = rows.into_iter().zip(squares).collect();
        record.push(pairs.len() as u64);
        record.extend(pairs.into_iter().flat_map(|(row, (_, square))| [row as u64, square.to_bits()]));
    }
    let record = Bytes::copy_from_slice(bytemuck::cast_slice(&record));
    let records = calling.all_gather_bytes(record).map_err(failure("minimize"))?;
    let records: Vec<_> = records.iter().map(|record| numbers::<u64>(record)).collect();
    let mut rest: Vec<&[u64]> = records.iter().map(|record| &**record).collect();
    let mut others = others.into_iter().peekable();
    let mut all = Vec::new();
    for variable in &routed {
        while let Some(before) = others.next_if(|(number, _)| *number < variable.index) {
            all.push(before);
        }
        let mut squares = Vec::new();
        for record in &mut rest {
            let count =
                record.split_off_first().map_or(0, |count| usize::try_from(*count).unwrap_or(usize::MAX));
            let words = count.saturating_mul(2).min(record.len());
            let pairs = record.split_off(..words).unwrap_or_default();
            squares.extend(pairs.chunks_exact(2).map(|pair| (pair[0], f64::from_bits(pair[1]))));
        }
        squares.sort_unstable_by_key(|(row, _)| *row);
        all.extend(squares.into_iter().map(|(_, square)| (variable.index, square)));
    }
    all.extend(others);
    Ok(all)
}
