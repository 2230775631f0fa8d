//! The mean of what all workers contribute to an outer step: of weights, or of what local steps have changed.
//!
//! | variables | sent |
//! |---|---|
//! | with [error feedback](crate::reduce::compressed) | packets, or factors of matrices |
//! | other variables of f32 | in the type of the strategy's [`Wire`]. In 16 bits, they are divided by the number of workers first, then rounded once on each worker, and as a sum |
//! | of f64 | as they are |

use super::contribution::{Kind, Mine, Place, places, slice};
use super::exchange::Calls;
use super::flat::{Flat, write_each};
use super::outer;
use crate::Inner;
use crate::parameters::Parameters;
use crate::reduce::compressed::{Contribution, Exchange, Senders, Sum};
use crate::sync::{Threads, abort_on};
use crate::update::locked::Locked;
use candle_core::DType;
use distribute_base::internal::Number;
use distribute_base::{Error, ErrorKind, Result};
use distribute_collective::group::{GroupCall, Real, SumOptions, numbers};
use distribute_core::strategy::Wire;

/// The mean of the contributions of all workers.
pub(super) struct Mean {
    places: Vec<Place>,
    /// The means of the variables with error feedback, in ascending order.
    compressed: Vec<Sum>,
    /// The means of the other variables of f32.
    f32: Vec<f32>,
    f64: Vec<f64>,
}

impl Mean {
    /// Returns the mean as one vector for each dtype.
    pub(super) fn into_flat(self) -> Flat {
        if self.compressed.is_empty() {
            return Flat { f32: self.f32, f64: self.f64 };
        }
        let of_f32 = self.places.iter().filter(|place| place.kind != Kind::F64);
        let f32 = of_f32.flat_map(|place| self.of_f32(place)).copied().collect();
        Flat { f32, f64: self.f64 }
    }

    /// Writes `agreed` minus the mean to the variables on the host.
    pub(super) fn write_change(&self, agreed: &Flat, parameters: &Parameters) -> Result<()> {
        let mut places = self.places.iter().peekable();
        write_each(parameters, |number, values| {
            let Some(place) = places.next_if(|place| place.number == number) else { return };
            match values {
                Locked::F32(values) => {
                    outer::change(values, slice(&agreed.f32, &place.all), self.of_f32(place))
                }
                Locked::F64(values) => {
                    outer::change(values, slice(&agreed.f64, &place.all), slice(&self.f64, &place.of_kind));
                }
            }
        })
    }

    /// Returns an error if a variable has another number of elements than its mean.
    fn require_complete(&self, parameters: &Parameters, operation: &'static str) -> Result<()> {
        let has_all = |place: &&Place| match place.kind {
            Kind::F64 => slice(&self.f64, &place.of_kind).len() == place.all.len(),
            _ => self.of_f32(place).len() == place.all.len(),
        };
        let Some(place) = self.places.iter().find(|place| !has_all(place)) else { return Ok(()) };
        let (name, _) = &parameters.variables[place.number];
        let reason =
            format!("the mean of variable {name:?} has another number of elements; nothing was changed");
        Err(Error::invalid(operation, reason))
    }

    /// Returns the mean of a variable of f32.
    fn of_f32(&self, place: &Place) -> &[f32] {
        match place.kind {
            Kind::Compressed => {
                let at = self.compressed.binary_search_by_key(&place.number, |(number, _)| *number);
                at.map_or(&[][..], |at| &self.compressed[at].1)
            }
            _ => slice(&self.f32, &place.of_kind),
        }
    }
}

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
    Mine { compressed, f32, f64 }: Mine,
    step: u64,
    threads: &Threads<'_>,
) -> Result<Mean> {
    let parameters = &*optimizer.parameters;
    let (wire, places) = (parameters.compression().wire(), places(parameters));
    let compressed = if compressed.is_empty() {
        Vec::new()
    } else {
        compressed_means(parameters, operation, calls, (&places, compressed), step, threads)?
    };
    let f32 = mean(optimizer, operation, calls, "its weights", f32, wire)?;
    let f64 = mean(optimizer, operation, calls, "its weights of f64", f64, Wire::Full)?;
    if wire == Wire::F16 {
        require_finite(parameters, operation, &f32, step)?;
    }
    let mean = Mean { places, compressed, f32, f64 };
    mean.require_complete(parameters, operation)?;
    Ok(mean)
}

/// Returns the means of the variables with error feedback. Contributions were divided by the number of workers before,
/// so these are sums.
fn compressed_means(
    parameters: &Parameters,
    operation: &'static str,
    calls: &Calls<'_>,
    (places, mine): (&[Place], Vec<Contribution>),
    step: u64,
    threads: &Threads<'_>,
) -> Result<Vec<Sum>> {
    let workers = parameters.strategy.world().workers();
    let compressed = places.iter().filter(|place| place.kind == Kind::Compressed);
    let variables: Vec<usize> = compressed.map(|place| place.number).collect();
    let mut made = Some(mine);
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
