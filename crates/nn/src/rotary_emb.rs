//! The rotary embeddings of `candle_nn::rotary_emb`, with gradients.
//!
//! Each pair of elements of a head is rotated by an angle that grows with the position. candle_nn's functions of the
//! same names detach their inputs from the graph, so the projections of queries and keys would not be trained.
//!
//! Tables of cosines and sines have shape `[positions, width / 2]`, or `[batch, positions, width / 2]` if each example
//! has separate angles. They may have more positions than the input. Inputs need not be contiguous. For f32 and f64 on
//! the CPU, a rotation is a single operation; for other dtypes and devices, it consists of several of candle's
//! operations. If the tables are trained, they also get gradients.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use distribute::nn::rotary_emb::rope_i;
//!
//! // One head of width 2 at two positions: the second is rotated by a right angle.
//! let x = Tensor::new(&[[[[1f32, 0.], [1., 0.]]]], &Device::Cpu)?;
//! let (cos, sin) = (Tensor::new(&[[1f32], [0.]], &Device::Cpu)?, Tensor::new(&[[0f32], [1.]], &Device::Cpu)?);
//! let rotated = rope_i(&x, &cos, &sin)?;
//! assert_eq!(rotated.flatten_all()?.to_vec1::<f32>()?, [1., 0., 0., 1.]);
//! # Ok::<(), candle_core::Error>(())
//! ```

use super::{autocast, operation};
use candle_core::{CpuStorage, CustomOp3, D, DType, Layout, Result, Shape, Tensor, bail};
pub use candle_nn::rotary_emb::{rope_i_slow, rope_slow};
use distribute_base::internal::{Number, gradients, operand, with_elements};
use std::marker::PhantomData;

/// Rotates each element i of the first half of a head with element i + width / 2. `xs` has shape `[batch, heads,
/// positions, width]`.
///
/// # Errors
/// Returns an error in these cases:
/// - The shapes do not match.
/// - `xs` is a tensor of integers.
/// - The operands have different dtypes. Under mixed precision, `xs` may be in half precision and the tables in f32.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope", RotaryLayout { pairs: Pairs::Halves, positions: 2 }, xs, cos, sin)
}

/// Rotates adjacent elements of a head: element 2 i with element 2 i + 1. `xs` has shape `[batch, heads, positions,
/// width]`.
///
/// # Errors
/// Returns the errors of [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope_i", RotaryLayout { pairs: Pairs::Neighbours, positions: 2 }, xs, cos, sin)
}

/// Acts like [`rope`], for `xs` of shape `[batch, positions, heads, width]`.
///
/// # Errors
///
/// Returns the errors of [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope_thd", RotaryLayout { pairs: Pairs::Halves, positions: 1 }, xs, cos, sin)
}

/// The elements of a head that are rotated as pairs.
#[derive(Clone, Copy, PartialEq)]
enum Pairs {
    Halves,
    Neighbours,
}

#[derive(Clone, Copy)]
struct RotaryLayout {
    pairs: Pairs,
    /// The index of the axis of positions: 2, or 1 if the axis of heads comes after it.
    positions: usize,
}

fn rotated(name: &str, kind: RotaryLayout, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let &[batch, _, _, width] = xs.dims() else {
        bail!("{name}: the input has to have four dimensions, not {:?}", xs.dims());
    };
    if xs.dtype().is_int() {
        bail!("{name}: numbers of {:?} cannot be rotated: convert them with to_dtype", xs.dtype());
    }
    if autocast::widens(xs) && [cos, sin].iter().all(|table| table.dtype() == DType::F32) {
        return rotated(name, kind, &autocast::widened(xs)?, cos, sin)?.to_dtype(xs.dtype());
    }
    let positions = xs.dim(kind.positions)?;
    let fits = |table: &Tensor| match *table.dims() {
        [len, half] => len >= positions && half * 2 == width,
        [of, len, half] => of == batch && len >= positions && half * 2 == width,
        _ => false,
    };
    if !fits(cos) || !fits(sin) || cos.rank() != sin.rank() {
        bail!(
            "{name}: input {:?} of {positions} positions needs cos and sin of [positions, {}] or [{batch}, positions, {}], \
             not {:?} and {:?}",
            xs.dims(),
            width / 2,
            width / 2,
            cos.dims(),
            sin.dims()
        );
    }
    let [cos, sin] = [cos, sin].map(|table| table.narrow(D::Minus2, 0, positions));
    let (cos, sin) = (cos?, sin?);
    if !operation::is_supported(xs, &cos, Some(&sin)) {
        operation::require_dtype(name, ("xs", xs), &[("cos", &cos), ("sin", &sin)])?;
        return composed(kind, xs, &cos, &sin);
    }
    let (xs, cos, sin) = (xs.contiguous()?, cos.contiguous()?, sin.contiguous()?);
    match xs.dtype() {
        DType::F32 => xs.apply_op3(&cos, &sin, Rotary { kind, number: PhantomData::<f32> }),
        _ => xs.apply_op3(&cos, &sin, Rotary { kind, number: PhantomData::<f64> }),
    }
}

/// Computes the rotation with candle's operations, which have gradients.
fn composed(kind: RotaryLayout, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    if xs.elem_count() == 0 {
        return Ok(xs.clone());
    }
    let heads = 3 - kind.positions;
    // Tables are [batch or nothing, positions, half]; this adds an axis for heads.
    let along = |table: &Tensor| table.unsqueeze(heads + table.rank() - 3);
    let (cos, sin) = (along(cos)?, along(sin)?);
    let half = xs.dim(D::Minus1)? / 2;
    let (first, second) = match kind.pairs {
        Pairs::Halves => (xs.narrow(D::Minus1, 0, half)?, xs.narrow(D::Minus1, half, half)?),
        Pairs::Neighbours => {
            let pairs = xs.reshape([&xs.dims()[..3], &[half, 2]].concat())?;
            (pairs.narrow(4, 0, 1)?.squeeze(4)?, pairs.narrow(4, 1, 1)?.squeeze(4)?)
        }
    };
    let rotated = [
        (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
        (first.broadcast_mul(&sin)? + second.broadcast_mul(&cos)?)?,
    ];
    match kind.pairs {
        Pairs::Halves => Tensor::cat(&rotated, D::Minus1),
        Pairs::Neighbours => Tensor::stack(&rotated, 4)?.flatten_from(3),
    }
}

/// The operation on an input with four dimensions. The tables must have exactly as many positions as the input.
struct Rotary<T> {
    kind: RotaryLayout,
    number: PhantomData<T>,
}

impl<T: Number> Rotary<T> {
    /// Returns, for each row along the last dimension of the input, the offset of its angles in the tables. A row of
    /// `width` elements uses `width / 2` angles. `tables` is the rank of the tables: 3 if each example has separate
    /// angles.
    fn offsets(&self, dims: &[usize], tables: usize) -> impl Iterator<Item = usize> {
        let (outer, inner, half) = (dims[1], dims[2], dims[3] / 2);
        let (by_position, per_batch) = (self.kind.positions == 1, tables == 3);
        let positions = dims[self.kind.positions];
        (0..dims[0]).flat_map(move |example| {
            let first = if per_batch { example * positions } else { 0 };
            (0..outer)
                .flat_map(move |i| (0..inner).map(move |j| (first + if by_position { i } else { j }) * half))
        })
    }

    /// Rotates each row. If `back` is `true`, the angles are negated.
    fn rotate(&self, x: &[T], dims: &[usize], tables: usize, cos: &[T], sin: &[T], back: bool) -> Vec<T> {
        let (width, half) = (dims[3], dims[3] / 2);
        let direction = T::of(if back { -1. } else { 1. });
        let mut out = vec![T::of(0.); x.len()];
        let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for ((x, out), place) in rows.zip(self.offsets(dims, tables)) {
            let angles = cos[place..][..half].iter().zip(&sin[place..][..half]);
            match self.kind.pairs {
                Pairs::Halves => {
                    let ((x, y), (to_x, to_y)) = (x.split_at(half), out.split_at_mut(half));
                    let pairs = x.iter().zip(y).zip(to_x.iter_mut().zip(to_y));
                    for (((x, y), (to_x, to_y)), (cos, sin)) in pairs.zip(angles) {
                        let sin = *sin * direction;
                        (*to_x, *to_y) = (*x * *cos - *y * sin, *x * sin + *y * *cos);
                    }
                }
                Pairs::Neighbours => {
                    let pairs = x.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
                    for (([x, y], to), (cos, sin)) in pairs.zip(angles) {
                        let sin = *sin * direction;
                        *to = [*x * *cos - *y * sin, *x * sin + *y * *cos];
                    }
                }
            }
        }
        out
    }

    /// Adds the gradients of the cosines to `sums`, or those of the sines if `of_sin` is `true`.
    fn table_gradient(
        &self,
        x: &[T],
        upstream: &[T],
        dims: &[usize],
        tables: usize,
        of_sin: bool,
        sums: &mut [T],
    ) {
        let (width, half) = (dims[3], dims[3] / 2);
        let rows = x.chunks_exact(width).zip(upstream.chunks_exact(width));
        for ((x, up), place) in rows.zip(self.offsets(dims, tables)) {
            for (i, sum) in sums[place..][..half].iter_mut().enumerate() {
                let (a, b) = match self.kind.pairs {
                    Pairs::Halves => (i, i + half),
                    Pairs::Neighbours => (2 * i, 2 * i + 1),
                };
                *sum += if of_sin { up[b] * x[a] - up[a] * x[b] } else { up[a] * x[a] + up[b] * x[b] };
            }
        }
    }
}

impl<T: Number> CustomOp3 for Rotary<T> {
    fn name(&self) -> &'static str {
        "rotary-emb"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        cos: &CpuStorage,
        of_cos: &Layout,
        sin: &CpuStorage,
        of_sin: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, cos, sin) = (operand(x, of_x)?, operand(cos, of_cos)?, operand(sin, of_sin)?);
        let out = self.rotate(x, of_x.dims(), of_cos.dims().len(), cos, sin, false);
        Ok((T::to_cpu_storage_owned(out), of_x.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dims, tables, upstream) = (x.dims(), cos.rank(), upstream.contiguous()?);
        with_elements(&upstream, |upstream: &[T]| {
            let of_x = if x.track_op() {
                let rotated = with_elements(cos, |cos| {
                    with_elements(sin, |sin| self.rotate(upstream, dims, tables, cos, sin, true))
                })??;
                Some(Tensor::from_vec(rotated, dims, x.device())?)
            } else {
                None
            };
            let table_gradient = |table: &Tensor, of_sin| {
                with_elements(x, |x| {
                    gradients::gradient(table, |place: &mut [T], add| {
                        if !add {
                            place.fill(T::of(0.));
                        }
                        self.table_gradient(x, upstream, dims, tables, of_sin, place);
                    })
                })?
            };
            Ok((of_x, table_gradient(cos, false)?, table_gradient(sin, true)?))
        })?
    }
}
