//! The mean of what all workers contribute to an outer step: of weights, or of what local steps have changed.
//!
//! | variables | sent |
//! |---|---|
//! | with [error feedback](crate::reduce::compressed) | packets, or factors of matrices |
//! | other variables of f32 | in the type of the strategy's [`Wire`]. In 16 bits, they are divided by the number of workers first, then rounded once on each worker, and as a sum |
//! | of f64 | as they are |

use super::exchange::Calls;
use super::flat::Flat;
use super::outer;
use crate::Inner;
use crate::parameters::Parameters;
use crate::reduce::compressed::{Contribution, Exchange, Senders, Sum, contributions};
use crate::sync::{Threads, abort_on};
use candle_core::DType;
use distribute_base::internal::Number;
use distribute_base::{Error, ErrorKind, Result};
use distribute_collective::group::{GroupCall, Real, SumOptions, numbers};
use distribute_core::strategy::Wire;
use std::ops::Range;

/// Returns the mean over all workers, in the fixed order of sums. `mine` is the contribution of this worker to outer
/// step number `step`, from 1. New residuals are [prepared](crate::feedback::Feedback::prepare).
///
/// # Errors
/// - The same error on all workers: a worker does not make the calls, fails or times out, or the mean is not finite in
///   f16.
/// - An error on this worker only: received data is malformed.
pub(super) fn of(
    optimizer: &Inner,
    operation: &'static str,
    calls: &Calls<'_>,
    mut mine: Flat,
    step: u64,
    threads: &Threads<'_>,
) -> Result<Flat> {
    let parameters = &*optimizer.parameters;
    let wire = parameters.compression().wire();
    let ranges = Ranges::of(parameters);
    let (compressed, others) = if ranges.compressed.is_empty() {
        (Vec::new(), std::mem::take(&mut mine.f32))
    } else {
        let compressed = compressed_means(parameters, operation, calls, (&mine.f32, &ranges), step, threads)?;
        let others = ranges.others.iter().flat_map(|range| &mine.f32[range.clone()]);
        (compressed, others.copied().collect())
    };
    let f32 = mean(optimizer, operation, calls, "its weights", others, wire)?;
    let f64 = mean(optimizer, operation, calls, "its weights of f64", mine.f64, Wire::Full)?;
    if wire == Wire::F16 {
        require_finite(parameters, operation, &f32, step)?;
    }
    let mean = Flat { f32, f64 };
    if compressed.is_empty() {
        return Ok(mean);
    }
    let mut all = mine.f32;
    let mut rest = mean.f32.as_slice();
    for range in &ranges.others {
        let (these, others) = rest.split_at(range.len().min(rest.len()));
        all[range.clone()].copy_from_slice(these);
        rest = others;
    }
    // Contributions are divided by the number of workers before they are compressed.
    for ((_, range), (_, mean)) in ranges.compressed.into_iter().zip(compressed) {
        all[range].copy_from_slice(&mean);
    }
    Ok(Flat { f32: all, f64: mean.f64 })
}

/// The places of the variables of f32 in a [`Flat`].
struct Ranges {
    /// The variables with error feedback, in ascending order.
    compressed: Vec<(usize, Range<usize>)>,
    /// All elements of other variables.
    others: Vec<Range<usize>>,
}

impl Ranges {
    fn of(parameters: &Parameters) -> Self {
        let mut ranges = Self { compressed: Vec::new(), others: Vec::new() };
        let mut end = 0;
        let variables = parameters.variables.iter().zip(&parameters.codecs).enumerate();
        for (number, ((_, variable), codec)) in variables {
            if variable.dtype() == DType::F64 {
                continue;
            }
            let range = end..end + variable.elem_count();
            end = range.end;
            match codec {
                Some(_) => ranges.compressed.push((number, range)),
                None => ranges.others.push(range),
            }
        }
        ranges
    }
}

/// Returns the means of the variables with error feedback.
fn compressed_means(
    parameters: &Parameters,
    operation: &'static str,
    calls: &Calls<'_>,
    (mine, ranges): (&[f32], &Ranges),
    step: u64,
    threads: &Threads<'_>,
) -> Result<Vec<Sum>> {
    let workers = parameters.strategy.world().workers();
    let weight = 1. / workers as f32;
    let made = contributions(threads, ranges.compressed.iter().collect(), |(number, range)| {
        Ok(Contribution::new(parameters, (0, *number), weight, &mine[range.clone()]))
    })?;
    let variables: Vec<usize> = ranges.compressed.iter().map(|(number, _)| *number).collect();
    let mut made = Some(made);
    let mut sums = |calling: Option<&mut GroupCall<'_>>| {
        let made = made.take().unwrap_or_default();
        let senders = Senders { operation, each: 1, all: workers, contributes: &|_, _| true };
        Exchange::new(calling, parameters, senders, threads).sums(&variables, made, step)
    };
    let exchanged = calls.make(operation, "its compressed weights", |mut calling| {
        let sums = sums(Some(&mut calling));
        Ok(sums.inspect_err(|error| abort_on(Some(calling), error)))
    })?;
    exchanged.unwrap_or_else(|| sums(None))
}

/// Returns an error if the mean is not finite. 16 bits have no feedback, so `mean` has all variables of f32.
///
/// # Errors
/// - [`Error::Failed`] of the kind `NotFinite`: the mean is NaN or infinite. All workers have the same mean, so all get
///   this error.
fn require_finite(parameters: &Parameters, operation: &'static str, mean: &[f32], step: u64) -> Result<()> {
    let Some(at) = mean.iter().position(|x| !x.is_finite()) else { return Ok(()) };
    let mut of_f32 = parameters.variables.iter().filter(|(_, variable)| variable.dtype() != DType::F64);
    let mut end = 0;
    let name = of_f32.find_map(|(name, variable)| {
        end += variable.elem_count();
        (at < end).then_some(name.as_str())
    });
    let reason = format!(
        "in outer step {step}, the mean change of variable {:?} is {} in f16, so no weight was changed: send with \
         Compression::Bf16, which has the range of f32, or find out why weights change by so much",
        name.unwrap_or_default(),
        mean[at]
    );
    Err(Error::failed(ErrorKind::NotFinite, operation, reason))
}

/// Returns the mean of the workers' vectors, which must have the same length. Numbers are rounded to the type `wire`,
/// even if there are no other workers. In 16 bits, they are divided by the number of workers before they are rounded
/// and sent, so that no sum exceeds the range of the type if the mean does not.
fn mean<F: Number + Real>(
    optimizer: &Inner,
    operation: &'static str,
    calls: &Calls<'_>,
    part: &str,
    mut mine: Vec<F>,
    wire: Wire,
) -> Result<Vec<F>> {
    if mine.is_empty() {
        return Ok(mine);
    }
    let strategy = &optimizer.parameters.strategy;
    let workers = strategy.world().workers();
    if wire != Wire::Full {
        outer::divide(&mut mine, workers);
    }
    let bytes_per_pack = strategy.extended().communication_options().bytes_per_pack;
    let options = SumOptions { bytes_per_pack, wire, ..SumOptions::default() };
    let sum = calls.make(operation, part, |mut calling| {
        let bytes: &[u8] = bytemuck::cast_slice(&mine);
        let mut vector = calling.buffers().take(bytes.len());
        vector.bytes_mut().copy_from_slice(bytes);
        let weights = vec![F::of(1.); calling.world().workers()];
        let pieces = calling.all_reduce_vectors(&[vector.freeze()], &weights, &options)?;
        let mut sum = Vec::with_capacity(mine.len());
        pieces.iter().for_each(|piece| sum.extend_from_slice(&numbers::<F>(piece)));
        Ok(sum)
    })?;
    let mut mean = sum.unwrap_or_else(|| {
        F::round(wire, &mut mine);
        mine
    });
    if wire == Wire::Full {
        outer::divide(&mut mean, workers);
    }
    Ok(mean)
}
