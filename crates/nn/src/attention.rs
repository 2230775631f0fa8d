//! Attention as a single operation: scores, softmax and the weighted mean of values, one head after another.

use super::exp::Exp;
use super::gemm::{Matrix, product};
use super::operation;
use super::softmax::{gradient_rows, softmax_last_dim, softmax_rows};
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, is_native, operand, to_device, with_elements};
use distribute_tensor::without_elements;
use std::sync::OnceLock;

/// The settings of an attention operation, without its operands.
pub(super) struct Attention {
    /// The mask that is added to the scores: `[1 or batch, 1 or heads, queries, keys]`.
    mask: Option<Tensor>,
    causal: bool,
    scale: f64,
    /// The cap of the scores; 1 means no cap.
    softcapping: f64,
    sizes: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    /// The number of heads of keys and values. Each is used by `heads / kv_heads` heads of queries.
    kv_heads: usize,
    queries: usize,
    keys: usize,
    /// The width of a query and a key.
    width: usize,
    /// The width of a value, and of a row of the result.
    value: usize,
}

impl Sizes {
    fn new(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        if let (
            &[batch, heads, queries, width],
            &[k_batch, kv_heads, keys, k_width],
            &[v_batch, v_heads, values, value],
        ) = (q.dims(), k.dims(), v.dims())
            && (batch, batch, kv_heads, keys, width) == (k_batch, v_batch, v_heads, values, k_width)
            && kv_heads > 0
            && heads.is_multiple_of(kv_heads)
            && width > 0
        {
            // There is a weight for each pair of a query and a key.
            operation::require_size("sdpa", &[batch, heads, queries, keys])?;
            operation::require_size("sdpa", &[batch, heads, queries, value])?;
            return Ok(Self { batch, heads, kv_heads, queries, keys, width, value });
        }
        bail!(
            "sdpa: queries {:?}, keys {:?}, values {:?} don't fit; expected [batch, heads, queries, width], \
             [batch, kv_heads, keys, width], [batch, kv_heads, keys, value_width], with heads a multiple of kv_heads",
            q.dims(),
            k.dims(),
            v.dims()
        )
    }

    /// Returns the head of keys and values that a head of queries uses, and whether this head of queries is the first
    /// to use it.
    ///
    /// Heads are numbered consecutively over the complete batch.
    fn pair(&self, head: usize) -> (usize, bool) {
        let (example, head, each) = (head / self.heads, head % self.heads, self.heads / self.kv_heads);
        (example * self.kv_heads + head / each, head.is_multiple_of(each))
    }
}

impl Attention {
    /// Checks the operands and creates the attention.
    ///
    /// # Errors
    /// Returns an error in these cases:
    /// - The shapes or dtypes do not match, or the scores or the result would be too large.
    /// - `causal` is `true` and there are more queries than keys.
    /// - The cap is not positive.
    pub(super) fn new(
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        mask: Option<&Tensor>,
        causal: bool,
        scale: f32,
        softcapping: f32,
    ) -> Result<Self> {
        let sizes = Sizes::new(q, k, v)?;
        if causal && sizes.queries > sizes.keys {
            bail!(
                "sdpa: with {} keys for {} queries, the first queries have no earlier key; do not set do_causal",
                sizes.keys,
                sizes.queries
            );
        }
        if softcapping <= 0. || softcapping.is_nan() {
            bail!("sdpa: softcapping has to be positive, 1 or infinity for none, not {softcapping}");
        }
        operation::require_dtype("sdpa", ("q", q), &[("k", k), ("v", v)])?;
        let mask = mask.map(|mask| added(mask, &sizes, q)).transpose()?;
        // As the cap grows, capped scores approach the plain ones; computed with infinity, they would be NaN.
        let softcapping = if softcapping.is_infinite() { 1. } else { softcapping };
        Ok(Self { mask, causal, scale: scale.into(), softcapping: softcapping.into(), sizes })
    }

    pub(super) fn apply(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let fits = |t: &Tensor| t.dtype() == q.dtype() && is_native(t);
        // A trained mask (such as a bias of relative positions) is an operand that needs a gradient.
        let plain = self.softcapping == 1. && self.mask.as_ref().is_none_or(|mask| !mask.track_op());
        match q.dtype() {
            DType::F32 if plain && [q, k, v].into_iter().all(fits) => self.fused::<f32>(q, k, v),
            DType::F64 if plain && [q, k, v].into_iter().all(fits) => self.fused::<f64>(q, k, v),
            _ => self.composed(q, k, v),
        }
    }

    fn fused<T: Exp>(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let keep = [q, k, v].into_iter().any(Tensor::track_op);
        let operation = Fused::<T> { attention: self, keep, weights: OnceLock::new() };
        q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, operation)
    }

    /// Computes attention with candle operations that have gradients.
    fn composed(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let Sizes { batch, heads, kv_heads, queries, keys, value, .. } = self.sizes;
        if batch == 0 {
            return without_elements(&[batch, heads, queries, value], q.dtype(), q.device());
        }
        let each = heads / kv_heads;
        let repeated = |t: &Tensor| match each {
            1 => t.contiguous(),
            _ => {
                let [.., width] = *t.dims() else { return t.contiguous() };
                let wide = t.unsqueeze(2)?.expand((batch, kv_heads, each, keys, width))?;
                wide.reshape((batch, heads, keys, width))
            }
        };
        let (k, v) = (repeated(k)?, repeated(v)?);
        let mut scores = (q.contiguous()?.matmul(&k.transpose(2, 3)?.contiguous()?)? * self.scale)?;
        if self.softcapping != 1. {
            scores = ((scores / self.softcapping)?.tanh()? * self.softcapping)?;
        }
        if let Some(mask) = &self.mask {
            scores = scores.broadcast_add(mask)?;
        }
        if self.causal {
            let hidden =
                |i| (0..keys).map(move |j| if j + queries > keys + i { f32::NEG_INFINITY } else { 0. });
            let mask: Vec<f32> = (0..queries).flat_map(hidden).collect();
            let mask = Tensor::from_vec(mask, (1, 1, queries, keys), &Device::Cpu)?;
            scores = scores.broadcast_add(&to_device(&mask, q.device())?.to_dtype(q.dtype())?)?;
        }
        softmax_last_dim(&scores)?.matmul(&v)
    }

    /// Turns the products of queries and keys of one head into scores: scales them, adds the mask, and hides the keys
    /// that a query must not see. Heads are numbered consecutively over the complete batch.
    fn finish<T: Number>(&self, scores: &mut [T], head: usize, mask: Option<&[T]>) {
        let Sizes { heads, queries, keys, .. } = self.sizes;
        let scale = T::of(self.scale);
        scores.iter_mut().for_each(|x| *x *= scale);
        if let (Some(mask), Some(tensor)) = (mask, &self.mask) {
            let (of_batch, of_heads) = (tensor.dims()[0], tensor.dims()[1]);
            let (example, head) = (head / heads % of_batch, head % heads % of_heads);
            let mask = &mask[(example * of_heads + head) * queries * keys..][..queries * keys];
            scores.iter_mut().zip(mask).for_each(|(x, mask)| *x += *mask);
        }
        if self.causal && keys > 0 {
            for (i, row) in scores.chunks_exact_mut(keys).enumerate() {
                row[i + 1 + keys - queries..].fill(T::of(f64::NEG_INFINITY));
            }
        }
    }
}

/// Converts a mask to a tensor that can be added to the scores, `[1 or batch, 1 or heads, queries, keys]`.
fn added(mask: &Tensor, sizes: &Sizes, q: &Tensor) -> Result<Tensor> {
    let Sizes { batch, heads, queries, keys, .. } = *sizes;
    let full = [batch, heads, queries, keys];
    let mask = &to_device(mask, q.device())?;
    let dims = mask.dims();
    let missing = full.len().checked_sub(dims.len());
    let Some(missing) = missing.filter(|n| dims.iter().zip(&full[*n..]).all(|(d, f)| *d == 1 || d == f))
    else {
        bail!("sdpa: a mask {dims:?} doesn't fit scores {full:?}");
    };
    let mask = mask.reshape([&[1; 4][..missing], dims].concat())?;
    let mask = match mask.dtype() {
        DType::U8 => {
            let value = |x: f32| Tensor::new(x, q.device())?.to_dtype(q.dtype())?.broadcast_as(mask.shape());
            mask.where_cond(&value(f32::NEG_INFINITY)?, &value(0.)?)?
        }
        dtype if dtype == q.dtype() => mask,
        dtype => bail!(
            "sdpa: a mask has dtype u8 (elements other than 0 are hidden) or the queries' {:?} (it is added), not {dtype:?}",
            q.dtype()
        ),
    };
    let [of_batch, of_heads, ..] = *mask.dims() else { bail!("sdpa: a mask has four dimensions here") };
    mask.broadcast_as((of_batch, of_heads, queries, keys))?.contiguous()
}

/// The fused operation on contiguous operands.
struct Fused<T> {
    attention: Attention,
    /// Whether the attention weights are kept for the backward pass.
    keep: bool,
    /// The attention weights, which the forward pass sets if `keep` is `true`. For each head and query, there is a row
    /// with a weight for each key.
    weights: OnceLock<Vec<T>>,
}

impl<T: Exp> Fused<T> {
    fn forward(&self, q: &[T], k: &[T], v: &[T], mask: Option<&[T]>) -> Vec<T> {
        let sizes = &self.attention.sizes;
        let Sizes { batch, heads, queries, keys, width, value, .. } = *sizes;
        let mut out = vec![T::of(0.); batch * heads * queries * value];
        let count = if self.keep { batch * heads } else { 1 };
        let mut weights = vec![T::of(0.); count * queries * keys];
        for head in 0..batch * heads {
            let (pair, _) = sizes.pair(head);
            let place = if self.keep { head } else { 0 };
            let weights = &mut weights[place * queries * keys..][..queries * keys];
            let q = Matrix::new(&q[head * queries * width..][..queries * width], queries, width);
            let k = Matrix::new(&k[pair * keys * width..][..keys * width], keys, width);
            let v = Matrix::new(&v[pair * keys * value..][..keys * value], keys, value);
            product(weights, false, q, k.t());
            self.attention.finish(weights, head, mask);
            softmax_rows(weights, keys);
            let out = &mut out[head * queries * value..][..queries * value];
            product(out, false, Matrix::new(weights, queries, keys), v);
        }
        if self.keep {
            // The operation runs once.
            let _ = self.weights.set(weights);
        }
        out
    }

    /// Computes the gradients of queries, keys and values. A gradient for which `asked` is `false` is `None`.
    fn gradients(
        &self,
        (q, k, v): (&[T], &[T], &[T]),
        upstream: &[T],
        weights: &[T],
        asked: [bool; 3],
    ) -> [Option<Vec<T>>; 3] {
        let sizes = &self.attention.sizes;
        let Sizes { batch, heads, queries, keys, width, value, .. } = *sizes;
        let scale = T::of(self.attention.scale);
        let zeros = |asked: bool, len: usize| asked.then(|| vec![T::of(0.); len]);
        let [mut of_q, mut of_k, mut of_v] =
            [zeros(asked[0], q.len()), zeros(asked[1], k.len()), zeros(asked[2], v.len())];
        let mut scores = vec![T::of(0.); queries * keys];
        for head in 0..batch * heads {
            let (pair, first) = sizes.pair(head);
            let weights = &weights[head * queries * keys..][..queries * keys];
            let upstream =
                Matrix::new(&upstream[head * queries * value..][..queries * value], queries, value);
            if let Some(of_v) = &mut of_v {
                let of_v = &mut of_v[pair * keys * value..][..keys * value];
                product(of_v, !first, Matrix::new(weights, queries, keys).t(), upstream);
            }
            if of_q.is_none() && of_k.is_none() {
                continue;
            }
            let v = Matrix::new(&v[pair * keys * value..][..keys * value], keys, value);
            product(&mut scores, false, upstream, v.t());
            gradient_rows(weights, &mut scores, keys);
            scores.iter_mut().for_each(|x| *x *= scale);
            let scores = Matrix::new(&scores, queries, keys);
            if let Some(of_q) = &mut of_q {
                let k = Matrix::new(&k[pair * keys * width..][..keys * width], keys, width);
                product(&mut of_q[head * queries * width..][..queries * width], false, scores, k);
            }
            if let Some(of_k) = &mut of_k {
                let q = Matrix::new(&q[head * queries * width..][..queries * width], queries, width);
                product(&mut of_k[pair * keys * width..][..keys * width], !first, scores.t(), q);
            }
        }
        [of_q, of_k, of_v]
    }
}

impl<T: Exp> CustomOp3 for Fused<T> {
    fn name(&self) -> &'static str {
        "sdpa"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        of_q: &Layout,
        k: &CpuStorage,
        of_k: &Layout,
        v: &CpuStorage,
        of_v: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (q, k, v) = (operand(q, of_q)?, operand(k, of_k)?, operand(v, of_v)?);
        let out = match &self.attention.mask {
            Some(mask) => with_elements(mask, |mask| self.forward(q, k, v, Some(mask)))?,
            None => self.forward(q, k, v, None),
        };
        let Sizes { batch, heads, queries, value, .. } = self.attention.sizes;
        Ok((T::to_cpu_storage_owned(out), (batch, heads, queries, value).into()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(weights) = self.weights.get() else { bail!("sdpa: a backward without a forward") };
        let (asked, upstream) = ([q, k, v].map(Tensor::track_op), upstream.contiguous()?);
        let gradients = with_elements(q, |of_q| {
            with_elements(k, |of_k| {
                with_elements(v, |of_v| {
                    with_elements(&upstream, |upstream| {
                        self.gradients((of_q, of_k, of_v), upstream, weights, asked)
                    })
                })
            })
        })????;
        let [of_q, of_k, of_v] = gradients;
        let tensor = |gradient: Option<Vec<T>>, of: &Tensor| {
            gradient.map(|gradient| Tensor::from_vec(gradient, of.shape(), of.device())).transpose()
        };
        Ok((tensor(of_q, q)?, tensor(of_k, k)?, tensor(of_v, v)?))
    }
}
