//! Batch-norm with the statistics of all replicas' examples.

mod composed;
mod moments;
mod normalize;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::{BatchNormConfig, ModuleT, VarBuilder};
use distribute_base::internal::{computed_in, is_native, to_device};
use distribute_core::internal::raise;
use distribute_core::{ReplicaContext, get_replica_context, get_strategy};
use distribute_tensor::HostTensor;
use moments::Moments;
use normalize::{Call, Gradient, Normalize};
use std::panic::Location;
use std::sync::Arc;

/// A batch-norm layer with the mean and variance of the *global* batch: N replicas compute the same as one device.
///
/// candle_nn's batch-norm, which also works, normalizes each per-replica batch separately. Its results depend
/// on the number of replicas, the more so the smaller the per-replica batches are. In all other respects this
/// layer equals candle_nn's: inputs `[rows, channels, ...]` of at least two dimensions, the variables
/// `weight`, `bias`, `running_mean` and `running_var`, the formula in evaluation, and gradients for input,
/// weight and bias.
///
/// In training, forward and backward are collectives: all replicas have to call them, including those with an
/// empty per-replica batch. A replica with an empty batch, or whose rows are all masked out of the loss, has
/// no weight. `minimize` with 0 examples participates in the backward pass for it, so do not `skip` the model
/// there. Every replica sets the same running statistics. If a replica fails or does not call, all replicas
/// get an error that names it.
///
/// Outside `run`, and with one replica, this is an ordinary batch-norm. In a cross-replica context of several
/// replicas it can only evaluate. The input may have another float dtype than the variables: the result has
/// the input's dtype, and half precision is computed in f32. There are two deviations from candle_nn, in cases
/// where candle_nn gives NaN. If the global batch has one element for each channel, `running_var` does not
/// change. If it has none, neither running statistic changes.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::ModuleT;
/// use distribute::{data::Dataset, nn::{BatchNormConfig, batch_norm}};
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| batch_norm(1, BatchNormConfig::default(), vb.pp("bn")))?;
/// let data = Dataset::from_slices(Tensor::new(&[[1f32], [2.], [6.]], &Device::Cpu)?)?.batch(3);
/// for batch in &strategy.distribute_dataset(data)? {
///     strategy.run((&model, batch?), |_, (bn, x)| Ok(bn.forward_t(&x, true)?))?;
/// }
/// // 0.9 * 0 + 0.1 * the mean of all three
/// assert_eq!(model.variables.get("bn.running_mean")?.to_vec1::<f32>()?, [0.3]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "SyncBatchNorm")]
#[doc(alias = "tf.keras.layers.BatchNormalization")]
#[doc(alias = "BatchNormalization")]
#[doc(alias = "tf.keras.layers.experimental.SyncBatchNormalization")]
#[doc(alias = "SyncBatchNormalization")]
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// candle_nn's layer, which holds the variables and evaluates.
    stock: candle_nn::BatchNorm,
    remove_mean: bool,
    /// The layer's weight. A layer without one uses a variable of ones that no optimizer updates, so that every
    /// replica's graph contains the operation.
    weight: Tensor,
    bias: Tensor,
}

/// Creates a [`BatchNorm`] over `channels` channels, with candle_nn's signature and variables.
///
/// # Errors
/// - The configuration is out of range.
/// - Variables have other shapes.
pub fn batch_norm<C: Into<BatchNormConfig>>(channels: usize, config: C, vb: VarBuilder) -> Result<BatchNorm> {
    let config = config.into();
    let stock = candle_nn::batch_norm(channels, config, vb)?;
    if !(0. ..=1.).contains(&config.momentum) {
        bail!("batch-norm: the momentum must be between 0 and 1, not {}", config.momentum);
    }
    let (weight, bias) = match stock.weight_and_bias() {
        Some((weight, bias)) => (weight.clone(), bias.clone()),
        None => {
            let dtype = stock.running_mean().dtype();
            let device = stock.running_mean().device();
            let one = Var::ones(channels, dtype, device)?.into_inner();
            (one, Tensor::zeros(channels, dtype, device)?)
        }
    };
    Ok(BatchNorm { remove_mean: config.remove_mean, weight, bias, stock })
}

impl BatchNorm {
    /// Returns this replica's running mean, of shape `[channels]`.
    pub fn running_mean(&self) -> &Tensor {
        self.stock.running_mean()
    }

    /// Returns this replica's running variance, of shape `[channels]`.
    pub fn running_var(&self) -> &Tensor {
        self.stock.running_var()
    }

    /// Returns the number that is added to the variance.
    pub fn eps(&self) -> f64 {
        self.stock.eps()
    }

    /// Returns the weight of a new batch in the running statistics.
    pub fn momentum(&self) -> f64 {
        self.stock.momentum()
    }

    /// Returns weight and bias, if the layer has them.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.stock.weight_and_bias()
    }

    /// Normalizes `x` by the statistics of all replicas' `x`, and updates the running statistics.
    ///
    /// # Errors
    /// - The shape or the dtype of `x` does not fit.
    /// - The collective fails. The error contains its message; `run` returns it as
    ///   [`Error::Collective`](distribute_base::Error::Collective).
    #[track_caller]
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let channels = self.running_mean().dim(0)?;
        if x.rank() < 2 || x.dim(1)? != channels {
            bail!("batch-norm: the input must be [rows, {channels}, ...], not {:?}", x.dims());
        }
        let dtype = computed_in(x.dtype());
        if !matches!(dtype, DType::F32 | DType::F64) {
            bail!("batch-norm: the input must be of floats, not {dtype:?}");
        }
        let context = get_replica_context();
        let replicas = context
            .as_ref()
            .map_or_else(|| get_strategy().num_replicas_in_sync(), ReplicaContext::num_replicas_in_sync);
        if context.is_none() && replicas > 1 {
            bail!(
                "batch-norm: in training it is a call of every replica, with its own running statistics; call it inside \
                 of run, not in cross-replica context, or with train = false"
            );
        }
        let input = x.to_dtype(dtype)?.contiguous()?;
        let y = if is_native(&input) || input.elem_count() == 0 {
            self.by_all(&input, Moments::of_tensor(&input)?, context)?
        } else {
            let mine = composed::Moments::of(&input)?;
            if replicas > 1 {
                self.by_all(&input, mine.on_host()?, context)?
            } else {
                self.alone(&input, mine, context)?
            }
        };
        y.to_dtype(x.dtype())
    }

    /// Normalizes `x` by its own moments, without copying them to the host.
    fn alone(&self, x: &Tensor, mine: composed::Moments, context: Option<ReplicaContext>) -> Result<Tensor> {
        self.set_running(mine.running(self.remove_mean)?, context.as_ref())?;
        let (weight, bias) = self.weight_and_bias_in(x.dtype())?;
        mine.normalize(self.remove_mean, self.eps())?.apply(x, &weight, &bias)
    }

    /// Normalizes `x` by the moments of all replicas; `mine` are those of this replica.
    #[track_caller]
    fn by_all(&self, x: &Tensor, mine: Moments, context: Option<ReplicaContext>) -> Result<Tensor> {
        let at = Location::caller();
        let all = match &context {
            Some(context) => gather(context, mine).map_err(raise)?,
            None => mine,
        };
        let [mean, variance] = all
            .running(self.remove_mean)
            .map(|new| new.map(|new| Tensor::new(new, &Device::Cpu)).transpose());
        self.set_running([mean?, variance?], context.as_ref())?;

        let channels = all.mean.len();
        let variance = all.variance(self.remove_mean);
        let gradient = context.filter(|context| context.num_replicas_in_sync() > 1).map(|context| Gradient {
            call: Call { number: context.next_call(), at },
            context,
            graph: Arc::new(()),
        });
        let operation = Normalize {
            inverse: variance.iter().map(|variance| 1. / (variance + self.eps()).sqrt()).collect(),
            mean: if self.remove_mean { all.mean } else { vec![0.; channels] },
            count: all.count,
            remove_mean: self.remove_mean,
            gradient: gradient.clone(),
        };
        let (weight, bias) = self.weight_and_bias_in(x.dtype())?;
        let y = if is_native(x) {
            x.apply_op3(&weight, &bias, operation)?
        } else {
            composed::Normalize::of_all(operation, x)?.apply(x, &weight, &bias)?
        };
        if let Some(Gradient { context, call, graph }) = gradient {
            context.forget_gradients(call.number, at).map_err(raise)?;
            let gave = x.track_op() && x.elem_count() > 0;
            context.expect_gradient((call.number, 0), (&y, &graph), gave, move |context| {
                let zeros = Tensor::zeros(2 * channels, DType::F64, &Device::Cpu)?;
                call.sum(context, &zeros).map(drop)
            });
        }
        Ok(y)
    }

    /// Returns weight and bias in the dtype of the computation.
    fn weight_and_bias_in(&self, dtype: DType) -> Result<(Tensor, Tensor)> {
        Ok((self.weight.to_dtype(dtype)?.contiguous()?, self.bias.to_dtype(dtype)?.contiguous()?))
    }

    /// Evaluates candle_nn's formula, with the dtype conversions of training.
    fn evaluate(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = computed_in(x.dtype());
        if [x.dtype(), self.running_mean().dtype()] == [dtype; 2] {
            return self.stock.forward_t(x, false);
        }
        let (mean, variance) = (self.running_mean().to_dtype(dtype)?, self.running_var().to_dtype(dtype)?);
        let (weight, bias) = (self.weight.to_dtype(dtype)?, self.bias.to_dtype(dtype)?);
        let stock = candle_nn::BatchNorm::new(mean.dim(0)?, mean, variance, weight, bias, self.eps())?;
        stock.forward_t(&x.to_dtype(dtype)?, false)?.to_dtype(x.dtype())
    }

    /// Moves the running mean and variance towards `new`, by candle_nn's formula.
    fn set_running(&self, new: [Option<Tensor>; 2], context: Option<&ReplicaContext>) -> Result<()> {
        for (running, new) in [self.running_mean(), self.running_var()].into_iter().zip(new) {
            let running = Var::from_tensor(running)?;
            if let Some(new) = new {
                let new = to_device(&new.to_dtype(running.dtype())?, running.device())?;
                let old = (running.as_detached_tensor() * (1. - self.momentum()))?;
                running.set(&(old + (new * self.momentum())?)?)?;
            }
            if let Some(context) = context {
                context.keep(&running);
            }
        }
        Ok(())
    }
}

impl ModuleT for BatchNorm {
    #[track_caller]
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.forward_train(x) } else { self.evaluate(x) }
    }
}

/// Gathers the moments of each replica and merges them.
#[track_caller]
fn gather(context: &ReplicaContext, mine: Moments) -> distribute_base::Result<Moments> {
    let row = mine.into_row();
    let width = row.len();
    let rows = context.all_gather(HostTensor::new(row, [1, width])?, 0)?.to_vec::<f64>()?;
    let rows: Vec<_> = rows.chunks(width).map(<[f64]>::to_vec).collect();
    Moments::merge_rows(&rows)
        .ok_or_else(|| distribute_base::Error::invalid("batch_norm", "a gather of no replica's moments"))
}
