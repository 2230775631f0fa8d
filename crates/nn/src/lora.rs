//! Low-rank adapters for the weights of any model. They are added by wrapping the model's `VarBuilder`; the model
//! itself does not change.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::fmt;
use std::sync::Arc;

const DOWN: &str = "lora_A.weight";
const UP: &str = "lora_B.weight";

/// The settings of low-rank adapters (LoRA): for a weight W of `[out, in]`, the model gets W + scale · B A, where A is
/// `[rank, in]` and B is `[out, rank]`.
///
/// [`wrap`](Lora::wrap) takes the builder of a model. Wrap it inside [`per_thread`](super::per_thread()), and call
/// [`PerThread::rebuilt`](super::PerThread::rebuilt) in each step, because a model keeps the sums that were computed
/// when it was built. The model's own variables are detached, so they get no gradient: exclude them from training with
/// `Optimizer::freeze`. Adapters have the names that the library PEFT uses, without its prefix: `layer.lora_A.weight`
/// and `layer.lora_B.weight` for `layer.weight`. At the start B is 0, so the model computes the same as without
/// adapters.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use distribute::nn::{self, Activation, Lora};
///
/// let strategy = MirroredStrategy::cpus(2)?;
/// let lora = Lora::new(2).scale(2.).of(|name| name.starts_with("1."));
/// let model = strategy.replicate(move |vb| {
///     let lora = lora.clone();
///     nn::per_thread(vb, move |vb| {
///         let vb = lora.wrap(vb); // the line that a model without adapters does not have
///         Ok((nn::linear(4, 8, vb.pp("0"))?, nn::linear(8, 3, vb.pp("1"))?))
///     })
/// })?;
/// assert_eq!(
///     model.variables.names(),
///     ["0.bias", "0.weight", "1.bias", "1.lora_A.weight", "1.lora_B.weight", "1.weight"]
/// );
/// let optimizer = AdamW::new(&model.variables, 0.1)?.freeze(|name| !Lora::is_adapter(name))?;
/// let x = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
/// for _ in 0..2 {
///     strategy.run(&model, |ctx, model| {
///         let (first, second) = model.rebuilt()?;
///         let y = second.forward(&first.forward(&x)?.relu()?)?;
///         optimizer.minimize(ctx, y.sqr()?.mean_all()?, 2)
///     })?;
/// }
/// let file = std::env::temp_dir().join(format!("adapters-{}.safetensors", std::process::id()));
/// model.variables.save_some(&file, Lora::is_adapter)?; // the adapters alone
/// # assert_eq!(candle_core::safetensors::load(&file, &Device::Cpu)?.len(), 2);
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Clone)]
pub struct Lora {
    rank: usize,
    scale: f64,
    adapts: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl Lora {
    /// Creates settings for adapters of all variables of two dimensions that are called `weight`, with the scale 1.
    /// `rank` must be at least 1; otherwise the wrapped builder returns an error for these variables.
    pub fn new(rank: usize) -> Self {
        Self { rank, scale: 1., adapts: Arc::new(|_| true) }
    }

    /// Sets the factor of the product B A. It is α / rank in the notation of the paper.
    pub fn scale(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// Limits the adapters to weights for whose names `adapts` returns `true`. By default, all weights of two
    /// dimensions get adapters, including tables of embeddings.
    pub fn of(self, adapts: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { adapts: Arc::new(adapts), ..self }
    }

    /// Returns a builder that adds adapters to the weights that a model requests from `vb`, and detaches all variables
    /// of the model.
    ///
    /// A model in bf16 or f16 has adapters in f32, because optimizers do not train half precision.
    pub fn wrap<'a>(&self, vb: VarBuilder<'a>) -> VarBuilder<'a> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        VarBuilder::from_backend(Box::new(Adapters { lora: self.clone(), vb }), dtype, device)
    }

    /// Returns `true` for the name of a variable of an adapter.
    pub fn is_adapter(name: &str) -> bool {
        [DOWN, UP].iter().any(|part| name.strip_suffix(part).is_some_and(is_path))
    }
}

impl fmt::Debug for Lora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lora").field("rank", &self.rank).field("scale", &self.scale).finish_non_exhaustive()
    }
}

/// Returns `true` if `layer` is empty or is a module path that ends with a dot.
fn is_path(layer: &str) -> bool {
    layer.is_empty() || layer.ends_with('.')
}

struct Adapters<'a> {
    lora: Lora,
    vb: VarBuilder<'a>,
}

impl SimpleBackend for Adapters<'_> {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        let weight = self.vb.get_with_hints_dtype(shape, name, init, dtype)?.detach();
        let Lora { rank, scale, adapts } = &self.lora;
        let layer = name.strip_suffix("weight").filter(|layer| is_path(layer) && adapts(name));
        let (Some(layer), &[rows, columns]) = (layer, weight.dims()) else {
            return Ok(weight);
        };
        if *rank == 0 {
            bail!("lora: variable {name} cannot have an adapter of rank 0; use a rank of at least 1");
        }
        let trained = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let get = |shape: (usize, usize), part: &str, init| {
            self.vb.get_with_hints_dtype(shape, &format!("{layer}{part}"), init, trained)
        };
        let down = get((*rank, columns), DOWN, candle_nn::init::DEFAULT_KAIMING_UNIFORM)?;
        let up = get((rows, *rank), UP, Init::Const(0.))?;
        weight + (up.matmul(&down)? * *scale)?.to_dtype(dtype)?
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        Ok(self.vb.get_unchecked_dtype(name, dtype)?.detach())
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.vb.contains_tensor(name)
    }
}
