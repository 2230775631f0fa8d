//! Dropout with masks that depend on positions in the global batch.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType, bail};
use distribute_base::internal::{choose, from_vec, is_native, operand, random};
use distribute_core::internal::default_context;
use distribute_core::{ReplicaContext, get_replica_context};
use distribute_tensor::random::Draws;

/// A layer that, during training, drops elements at random and scales the remaining ones by 1 / (1 - p).
///
/// The mask depends on the seed, the name, the step, and the number of calls with this name in the step. Whether an
/// element is dropped also depends on its row in the global batch and its position in the row, but not on the thread or
/// the replica. N replicas therefore drop the same elements as a single device with the same global batch, even if some
/// per-replica batches are smaller or empty, and runs are reproducible.
///
/// - **The step** is the sequence number of the current [`run`](distribute_core::Strategy::run) of its strategy. To
///   continue training in another process with the same masks, restore that number with
///   [`Strategy::set_steps`](distribute_core::Strategy::set_steps). Outside `run`, and in cross-replica context, the
///   step is 0 and calls are counted for the complete process, so masks depend on the order of threads.
/// - **Rows in the global batch** are used if `run` gets a per-replica batch ([`ReplicaContext::rows`]). This requires
///   that the first dimension of the input is the number of rows of that batch, or a multiple of it (as in
///   `[rows * words, features]`). Otherwise the masks of each replica depend on its id, so they are only reproducible
///   for the same number of replicas.
/// - **Names** make the masks of layers independent. Use a unique name for each layer, such as `vb.prefix()`. The
///   layer has no variables, so checkpoints of the model do not change.
///
/// The backward pass computes the mask again instead of storing it. Inputs are floats of any shape. If the input is on
/// a device, the mask is computed on the CPU and copied to the device, at one byte per element.
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
/// let two = dropped(&MirroredStrategy::new(["cpu:0", "cpu:1"])?)?;
/// assert_eq!(two, dropped(&OneDeviceStrategy::new("cpu:0")?)?);
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
    /// Creates a layer that drops elements with probability `p`, which must be in [0, 1). The masks are derived from
    /// `seed` and `name`.
    ///
    /// # Errors
    /// Returns an error if `p` is not in [0, 1).
    pub fn new(p: f32, seed: u64, name: &str) -> Result<Self> {
        if !(0. ..1.).contains(&p) {
            bail!("dropout {name:?}: the probability has to be in [0, 1), not {p}");
        }
        Ok(Self { p, draws: random::draws(seed, name) })
    }

    /// Sets some elements of `xs` to zero and scales the others if `train` is `true`; otherwise returns `xs` unchanged.
    /// Gradients flow through the elements that are kept.
    ///
    /// # Errors
    /// Returns an error if `train` is `true`, the probability is not 0, and `xs` is a tensor of integers.
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if !train || self.p == 0. {
            return Ok(xs.clone());
        }
        // Cross-replica code runs once for all replicas, like code outside strategies.
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
            // Exact, because it is a power of two times a float. Less than 2^32, because p is below 1.
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

/// Returns the position of the first input row in the global batch. `rows` are the rows of the per-replica batch, and
/// `size` is the number of input rows. Returns `None` if the per-replica batch is unknown or empty, or if `size` is not
/// a multiple of its number of rows.
///
/// If `size` is greater than the number of rows in the batch, each row of the batch corresponds to several input rows.
fn first_row(rows: Option<std::ops::Range<usize>>, size: usize) -> Option<usize> {
    let rows = rows.filter(|rows| !rows.is_empty() && size.is_multiple_of(rows.len()))?;
    Some(rows.start * (size / rows.len()))
}

/// The operation that drops and scales elements. Its gradient is the same operation.
#[derive(Clone)]
struct Mask {
    draws: Draws,
    first_row: usize,
    /// The threshold below which the 32 random bits of an element cause it to be dropped.
    threshold: u32,
    scale: f64,
}

impl Mask {
    /// Applies the mask with candle's operations on any device. The mask itself is computed on the CPU.
    fn composed(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.dtype().is_int() {
            bail!("dropout: the input must have a float dtype");
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

    /// Applies `kept` to each element of `source`, and returns the results with zeros for the dropped elements.
    fn each<T: WithDType>(&self, source: &[T], dims: &[usize], kept: impl Fn(T) -> T) -> Vec<T> {
        let width = dims.get(1..).unwrap_or_default().iter().product::<usize>().max(1);
        let zero = T::zero();
        // Indexing instead of branching: half of the branches would be mispredicted.
        let keep = |x: T, bits: u64| [kept(x), zero][usize::from((bits as u32) < self.threshold)];
        let mut out = vec![zero; source.len()];
        for (row, (source, out)) in source.chunks(width).zip(out.chunks_mut(width)).enumerate() {
            let draws = self.draws.at((self.first_row + row) as u64);
            // One random number serves two elements.
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
            _ => bail!("dropout: the input must have a float dtype"),
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
    fn the_first_row_is_static_if_the_input_has_the_rows_of_the_batch() {
        assert_eq!(first_row(Some(3..5), 2), Some(3));
        assert_eq!(first_row(Some(3..5), 6), Some(9), "three rows for each of the piece");
        assert_eq!(first_row(Some(3..5), 3), None);
        assert_eq!(first_row(Some(3..3), 0), None);
        assert_eq!(first_row(None, 2), None);
    }
}
