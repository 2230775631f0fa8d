//! Dropout whose masks are functions of positions in the global batch.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType, bail};
use distribute_base::internal::{choose, from_vec, is_native, operand, random};
use distribute_core::internal::default_context;
use distribute_core::{ReplicaContext, get_replica_context};
use distribute_tensor::random::Draws;

/// Drops elements at random while training, and scales those that stay by 1 / (1 - p).
///
/// Whether an element stays depends on (seed, name, step, how often this name has drawn in this step, row in the global
/// batch, place in the row), and not on the thread or the replica. So R replicas drop what one device would on the same
/// global batch, uneven and empty pieces included, and the same program drops the same again.
///
/// - **Step** is the number of this [`run`](distribute_core::Strategy::run) on its strategy. A training that is resumed in another
///   process draws on as if it had not stopped if it restores that number:
///   [`Strategy::set_steps`](distribute_core::Strategy::set_steps). Outside of `run`, and in cross-replica context, the step is 0, and
///   calls are counted for the whole process: threads would race for their masks.
/// - **Rows in the global batch** are known where `run` is given a piece of a batch ([`ReplicaContext::rows`]), and the
///   input's first dimension is its number of rows, or a multiple of it (as of `[rows * words, features]`). Otherwise
///   each replica draws by its id: reproducible for the same number of replicas.
/// - **Names** keep layers apart: give each its own, such as `vb.prefix()`. There is no variable behind it, so a model's
///   file stays what it is.
///
/// The backward pass draws the mask again instead of keeping it. Inputs are floats of any shape; on a device, the mask is drawn on the CPU
/// and copied there, a byte for each element.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Tensor};
/// use distribute::{data::Dataset, nn::Dropout};
///
/// let dropout = Dropout::new(0.5, 42, "hidden")?;
/// let dropped = |strategy: &Strategy| -> distribute::Result<Vec<f32>> {
///     let data = Dataset::from_slices(Tensor::ones((3, 8), DType::F32, &Device::Cpu)?)?.batch(3);
///     let batch = strategy.distribute_dataset(data)?.iter().next().unwrap()?;
///     let pieces = strategy.run(batch, |_, piece| Ok(dropout.forward(&piece, true)?))?;
///     Ok(Tensor::cat(pieces.values(), 0)?.flatten_all()?.to_vec1()?)
/// };
/// let two = dropped(&*MirroredStrategy::new(["cpu:0", "cpu:1"])?)?;
/// assert_eq!(two, dropped(&*OneDeviceStrategy::new("cpu:0")?)?);
/// assert!(two.contains(&0.) && two.contains(&2.));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.Dropout")]
#[doc(alias = "tf.random.experimental.stateless_dropout")]
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f32,
    draws: Draws,
}

impl Dropout {
    /// Drops elements with probability `p`, in [0, 1), by masks drawn from `seed` and `name`.
    ///
    /// # Errors
    /// candle's, for another `p`.
    pub fn new(p: f32, seed: u64, name: &str) -> Result<Self> {
        if !(0. ..1.).contains(&p) {
            bail!("dropout {name:?}: the probability has to be in [0, 1), not {p}");
        }
        Ok(Self { p, draws: random::draws(seed, name) })
    }

    /// `xs` with elements dropped if `train`; else `xs`. The gradient passes through the elements that stay.
    ///
    /// # Errors
    /// candle's, for a tensor of integers.
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if !train || self.p == 0. {
            return Ok(xs.clone());
        }
        // Cross-replica code runs once for all replicas, as outside of all strategies.
        let context = get_replica_context().unwrap_or_else(|| default_context().clone());
        let mask = self.mask(&context, xs.dims());
        if !is_native(xs) {
            return mask.composed(xs);
        }
        match xs.dtype() {
            DType::F16 | DType::BF16 => {
                xs.to_dtype(DType::F32)?.contiguous()?.apply_op1(mask)?.to_dtype(xs.dtype())
            }
            _ => xs.contiguous()?.apply_op1(mask),
        }
    }

    fn mask(&self, context: &ReplicaContext, dims: &[usize]) -> Mask {
        let size = dims.first().copied().unwrap_or(1);
        let call = context.next_draw(self.draws.bits(0));
        let draws = self.draws.at(context.step()).at(call);
        let (draws, first_row) = match first_row(context.rows(), size) {
            Some(first) => (draws.at(0), first),
            None => (draws.at(1 + context.replica_id_in_sync_group() as u64), 0),
        };
        Mask {
            draws,
            first_row,
            // Exact: a power of two times a float. Below 2^32, since p is below 1.
            threshold: (f64::from(self.p) * 2f64.powi(32)) as u32,
            scale: 1. / (1. - f64::from(self.p)),
        }
    }
}

impl candle_nn::ModuleT for Dropout {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(xs, train)
    }
}

/// The place in the global batch of the first of `size` rows, where the piece has `rows`: several for each of them, if
/// `size` is a multiple.
fn first_row(rows: Option<std::ops::Range<usize>>, size: usize) -> Option<usize> {
    let rows = rows.filter(|rows| !rows.is_empty() && size.is_multiple_of(rows.len()))?;
    Some(rows.start * (size / rows.len()))
}

/// Drops and scales. It is its own gradient.
#[derive(Clone)]
struct Mask {
    draws: Draws,
    first_row: usize,
    /// An element stays if its 32 random bits are not below.
    threshold: u32,
    scale: f64,
}

impl Mask {
    /// By operations of candle's on any device: the mask itself is drawn on the CPU.
    fn composed(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.dtype().is_int() {
            bail!("dropout: input must be of floats");
        }
        if xs.elem_count() == 0 {
            return Ok(xs.clone());
        }
        let stays = self.each(&vec![1u8; xs.elem_count()], xs.dims(), |one| one);
        let stays = from_vec(stays, xs.shape(), xs.device())?;
        choose(&stays, &(xs * self.scale)?, &xs.zeros_like()?)
    }

    fn apply<T: WithDType>(&self, storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        let (source, scale) = (operand::<T>(storage, layout)?, T::from_f64(self.scale));
        Ok(T::to_cpu_storage_owned(self.each(source, layout.dims(), |x| x * scale)))
    }

    /// What `kept` makes of each element that stays, and zeros.
    fn each<T: WithDType>(&self, source: &[T], dims: &[usize], kept: impl Fn(T) -> T) -> Vec<T> {
        let width = dims.get(1..).unwrap_or_default().iter().product::<usize>().max(1);
        let zero = T::zero();
        // Indexed, not branched: half of the branches would be mispredicted.
        let keep = |x: T, bits: u64| [kept(x), zero][usize::from((bits as u32) < self.threshold)];
        let mut out = vec![zero; source.len()];
        for (row, (source, out)) in source.chunks(width).zip(out.chunks_mut(width)).enumerate() {
            let draws = self.draws.at((self.first_row + row) as u64);
            // One draw serves two elements.
            let (pairs, last) = source.as_chunks::<2>();
            let (pairs_out, last_out) = out.as_chunks_mut::<2>();
            for (i, (pair, out)) in pairs.iter().zip(pairs_out).enumerate() {
                let bits = draws.bits(i as u64);
                *out = [keep(pair[0], bits), keep(pair[1], bits >> 32)];
            }
            for (x, out) in last.iter().zip(last_out) {
                *out = keep(*x, draws.bits(pairs.len() as u64));
            }
        }
        out
    }
}

impl CustomOp1 for Mask {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let dropped = match storage {
            CpuStorage::F32(_) => self.apply::<f32>(storage, layout),
            CpuStorage::F64(_) => self.apply::<f64>(storage, layout),
            _ => bail!("dropout: input must be of floats"),
        };
        Ok((dropped?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(upstream.contiguous()?.apply_op1_no_bwd(self)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_is_known_where_the_input_has_the_pieces_rows() {
        assert_eq!(first_row(Some(3..5), 2), Some(3));
        assert_eq!(first_row(Some(3..5), 6), Some(9), "three rows for each of the piece");
        assert_eq!(first_row(Some(3..5), 3), None);
        assert_eq!(first_row(Some(3..3), 0), None);
        assert_eq!(first_row(None, 2), None);
    }
}
