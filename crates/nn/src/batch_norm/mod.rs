//! Batch norm with statistics over the examples of all replicas.

mod composed;
mod moments;
mod normalize;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::{BatchNormConfig, ModuleT, VarBuilder};
use distribute_base::internal::{accumulation_dtype, is_native, to_device};
use distribute_core::internal::to_candle_error;
use distribute_core::{ReplicaContext, get_replica_context, get_strategy};
use distribute_tensor::HostTensor;
use moments::Moments;
use normalize::{Call, Gradient, Normalize};
use std::panic::Location;
use std::sync::Arc;

/// A batch-norm layer that uses the mean and variance of the *global* batch, so N replicas compute the same as a single
/// device.
///
/// candle_nn's batch norm can also be used, but it normalizes each per-replica batch separately. Its results therefore
/// depend on the number of replicas, especially if per-replica batches are small. This layer has the same inputs, of
/// shape `[rows, channels, ...]` with at least two dimensions, and the same variables: `weight`, `bias`, `running_mean`
/// and `running_var`. The formula in evaluation is also the same. Input, weight and bias have gradients.
///
/// In training, the forward and backward passes are collectives. All replicas must make these calls, even with an empty
/// per-replica batch. A replica has no weight if its batch is empty or if all of its rows are masked in the loss. Such
/// a replica must still call the model, because it takes part in the backward pass. Pass 0 examples to `minimize` there
/// instead of calling `skip`. All replicas set the same running statistics. If a replica fails or does not make the
/// call, all replicas get an error that names it.
///
/// Outside `run`, and with a single replica, this is an ordinary batch norm. In the cross-replica context of several
/// replicas, it can only evaluate. The input may have a different float dtype than the variables. The result has the
/// input's dtype, and half precision is computed in f32. The layer differs from candle_nn's in two cases in which
/// candle_nn's results are NaN. If the global batch has one element per channel, `running_var` does not change. If it
/// has none, neither running statistic changes.
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
    /// The wrapped layer of candle_nn, which contains the variables and is used in evaluation.
    stock: candle_nn::BatchNorm,
    remove_mean: bool,
    /// The weight of the layer. If the layer has none, this is a variable of ones that no optimizer updates, so that
    /// every replica's graph contains the operation.
    weight: Tensor,
    bias: Tensor,
}

/// Creates a [`BatchNorm`] for inputs with `channels` channels, with the signature and variables of candle_nn.
///
/// # Errors
/// Returns the errors of the `VarBuilder`, and an error if the epsilon or the momentum in `config` is out of range.
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
    /// Returns the running mean on this replica, of shape `[channels]`.
    pub fn running_mean(&self) -> &Tensor {
        self.stock.running_mean()
    }

    /// Returns the running variance on this replica, of shape `[channels]`.
    pub fn running_var(&self) -> &Tensor {
        self.stock.running_var()
    }

    /// Returns epsilon, which is added to the variance.
    pub fn eps(&self) -> f64 {
        self.stock.eps()
    }

    /// Returns the momentum: the weight of a new batch in the running statistics.
    pub fn momentum(&self) -> f64 {
        self.stock.momentum()
    }

    /// Returns the weight and the bias; `None` if the layer has neither.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.stock.weight_and_bias()
    }

    /// Normalizes `x` with the statistics over all replicas, and updates the running statistics. This is a collective.
    ///
    /// # Errors
    /// Returns an error in these cases:
    /// - The shape of `x` does not match the layer, or its dtype is not a float dtype.
    /// - This is called in the cross-replica context of several replicas.
    /// - The collective fails. `run` then returns [`Error::Collective`](distribute_base::Error::Collective).
    #[track_caller]
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let channels = self.running_mean().dim(0)?;
        if x.rank() < 2 || x.dim(1)? != channels {
            bail!("batch-norm: the input must be [rows, {channels}, ...], not {:?}", x.dims());
        }
        let dtype = accumulation_dtype(x.dtype());
        if !matches!(dtype, DType::F32 | DType::F64) {
            bail!("batch-norm: the input must have a float dtype, not {dtype:?}");
        }
        let context = get_replica_context();
        let replicas = context
            .as_ref()
            .map_or_else(|| get_strategy().num_replicas_in_sync(), ReplicaContext::num_replicas_in_sync);
        if context.is_none() && replicas > 1 {
            bail!(
                "batch-norm: in training every replica calls it, with its own running statistics; call it inside run, \
                 not in cross-replica context, or with train = false"
            );
        }
        let input = x.to_dtype(dtype)?.contiguous()?;
        let y = if is_native(&input) || input.elem_count() == 0 {
            self.train_over_replicas(&input, Moments::of_tensor(&input)?, context)?
        } else {
            let mine = composed::Moments::of(&input)?;
            if replicas > 1 {
                self.train_over_replicas(&input, mine.on_host()?, context)?
            } else {
                self.train_alone(&input, mine, context)?
            }
        };
        y.to_dtype(x.dtype())
    }

    /// Normalizes `x` with its own moments, which are not copied to the host. Updates the running statistics.
    fn train_alone(
        &self,
        x: &Tensor,
        mine: composed::Moments,
        context: Option<ReplicaContext>,
    ) -> Result<Tensor> {
        self.set_running(mine.running(self.remove_mean)?, context.as_ref())?;
        let (weight, bias) = self.weight_and_bias_in(x.dtype())?;
        mine.normalize(self.remove_mean, self.eps())?.apply(x, &weight, &bias)
    }

    /// Normalizes `x` with the moments over all replicas. `mine` are the moments of this replica. Updates the running
    /// statistics.
    #[track_caller]
    fn train_over_replicas(
        &self,
        x: &Tensor,
        mine: Moments,
        context: Option<ReplicaContext>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let all = match &context {
            Some(context) => gather(context, mine).map_err(to_candle_error)?,
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
            composed::Normalize::from_replicas(operation, x)?.apply(x, &weight, &bias)?
        };
        if let Some(Gradient { context, call, graph }) = gradient {
            context.forget_gradients(call.number, at).map_err(to_candle_error)?;
            let gave = x.track_op() && x.elem_count() > 0;
            context.expect_gradient((call.number, 0), (&y, &graph), gave, move |context| {
                let zeros = Tensor::zeros(2 * channels, DType::F64, &Device::Cpu)?;
                call.sum(context, &zeros).map(drop)
            });
        }
        Ok(y)
    }

    fn weight_and_bias_in(&self, dtype: DType) -> Result<(Tensor, Tensor)> {
        Ok((self.weight.to_dtype(dtype)?.contiguous()?, self.bias.to_dtype(dtype)?.contiguous()?))
    }

    /// Evaluates with candle_nn's formula, and with the same dtype conversions as in training.
    fn evaluate(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = accumulation_dtype(x.dtype());
        if [x.dtype(), self.running_mean().dtype()] == [dtype; 2] {
            return self.stock.forward_t(x, false);
        }
        let (mean, variance) = (self.running_mean().to_dtype(dtype)?, self.running_var().to_dtype(dtype)?);
        let (weight, bias) = (self.weight.to_dtype(dtype)?, self.bias.to_dtype(dtype)?);
        let stock = candle_nn::BatchNorm::new(mean.dim(0)?, mean, variance, weight, bias, self.eps())?;
        stock.forward_t(&x.to_dtype(dtype)?, false)?.to_dtype(x.dtype())
    }

    /// Moves the running mean and variance towards `new` with candle_nn's formula. If the new value of a statistic is
    /// `None`, the statistic does not change. In a replica, both statistics are marked as valid even if the replica's
    /// batch is empty.
    fn set_running(&self, new: [Option<Tensor>; 2], context: Option<&ReplicaContext>) -> Result<()> {
        for (running, new) in [self.running_mean(), self.running_var()].into_iter().zip(new) {
            let running = Var::from_tensor(running)?;
            if let Some(new) = new {
                let new = to_device(&new.to_dtype(running.dtype())?, running.device())?;
                let old = (running.as_detached_tensor() * (1. - self.momentum()))?;
                running.set(&(old + (new * self.momentum())?)?)?;
            }
            if let Some(context) = context {
                context.mark_valid_on_empty(&running);
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

/// Gathers the moments of all replicas and merges them.
#[track_caller]
fn gather(context: &ReplicaContext, mine: Moments) -> distribute_base::Result<Moments> {
    let row = mine.into_row();
    let width = row.len();
    let rows = context.all_gather(HostTensor::new(row, [1, width])?, 0)?.to_vec::<f64>()?;
    let rows: Vec<_> = rows.chunks(width).map(<[f64]>::to_vec).collect();
    Moments::merge_rows(&rows)
        .ok_or_else(|| distribute_base::Error::invalid("batch_norm", "a gather of no replica's moments"))
}
