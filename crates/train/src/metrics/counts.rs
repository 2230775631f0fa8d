//! Sums to which replicas add. All metrics consist of such sums.

use candle_core::{DType, Tensor};
use distribute_base::internal::to_host;
use distribute_base::{ContextKind, Error, Result, VariableAggregation, VariableSynchronization};
use distribute_core::internal::current_kind;
use distribute_core::{Strategy, Variable, get_replica_context};
use distribute_tensor::HostTensor;

/// The sums of a metric. Each replica adds to its own copy, and reads return the sum of the copies.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    variable: Variable,
}

impl Counts {
    /// Creates sums of shape `dims` that are all 0.
    pub(super) fn new(strategy: &Strategy, name: &str, dims: &[usize]) -> Result<Self> {
        let zeros = HostTensor::zeros(distribute_tensor::DType::F64, dims)?;
        let create = || {
            Variable::builder(name, zeros)
                .synchronization(VariableSynchronization::OnRead)
                .aggregation(VariableAggregation::Sum)
                .not_trainable()
                .create()
        };
        Ok(Self { variable: strategy.scope(create)? })
    }

    pub(super) fn variable(&self) -> &Variable {
        &self.variable
    }

    #[track_caller]
    pub(super) fn add(&self, counts: Vec<f64>) -> Result<()> {
        let added = self.variable.assign_add(HostTensor::new(counts, self.variable.dims())?);
        added.map_err(|error| match (error, current_kind()) {
            (Error::VariableAccess { .. }, ContextKind::Default | ContextKind::CrossReplica) => {
                Error::WrongContext {
                    operation: "update of a metric",
                    required: ContextKind::Replica,
                    found: ContextKind::CrossReplica,
                    advice: "each replica counts its own examples: call it in the closure passed to run",
                }
            }
            (error, _) => error,
        })
    }

    /// Returns the sums over all replicas.
    pub(super) fn total(&self, operation: &'static str) -> Result<Vec<f64>> {
        outside(operation)?;
        Ok(self.variable.read::<HostTensor>()?.to_vec()?)
    }

    #[track_caller]
    pub(super) fn reset(&self, operation: &'static str) -> Result<()> {
        outside(operation)?;
        self.variable.assign(HostTensor::zeros(distribute_tensor::DType::F64, self.variable.dims())?)
    }
}

/// The counts of a binary classifier at a threshold.
#[derive(Clone, Debug)]
pub(super) struct Confusion {
    threshold: f64,
    /// The numbers of true positives, false positives and false negatives.
    counts: Counts,
}

impl Confusion {
    pub(super) fn new(
        operation: &'static str,
        strategy: &Strategy,
        name: &str,
        threshold: f64,
    ) -> Result<Self> {
        if !(0. ..=1.).contains(&threshold) {
            return Err(Error::invalid(operation, format!("a threshold of {threshold} is not in [0, 1]")));
        }
        Ok(Self { threshold, counts: Counts::new(strategy, name, &[3])? })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    #[track_caller]
    pub(super) fn update(
        &self,
        operation: &'static str,
        predictions: &Tensor,
        labels: &Tensor,
    ) -> Result<()> {
        let mut counts = vec![0.; 3];
        let pairs = pairs(operation, ["predictions", "labels"], predictions, labels)?;
        for (place, (prediction, label)) in pairs.enumerate() {
            require_probability(operation, place, prediction)?;
            match (prediction > self.threshold, label != 0.) {
                (true, true) => counts[0] += 1.,
                (true, false) => counts[1] += 1.,
                (false, true) => counts[2] += 1.,
                (false, false) => {}
            }
        }
        self.counts.add(counts)
    }

    /// Returns the true positives, false positives and false negatives of all replicas.
    pub(super) fn total(&self, operation: &'static str) -> Result<[f64; 3]> {
        let counts = self.counts.total(operation)?;
        Ok([counts[0], counts[1], counts[2]])
    }
}

pub(super) fn require_probability(operation: &'static str, place: usize, prediction: f64) -> Result<()> {
    if (0. ..=1.).contains(&prediction) {
        return Ok(());
    }
    let reason = format!(
        "prediction {place} is {prediction}; pass probabilities from 0 to 1, such as those of a sigmoid"
    );
    Err(Error::invalid(operation, reason))
}

/// Returns an error outside the cross-replica context, because a replica can only read its own copy. The replica of the
/// default strategy is an exception.
fn outside(operation: &'static str) -> Result<()> {
    let (found, replica) = (current_kind(), get_replica_context());
    if found == ContextKind::CrossReplica || replica.is_some_and(|replica| replica.strategy().is_default()) {
        return Ok(());
    }
    let advice = "call it after run, or in a merge function";
    Err(Error::WrongContext { operation, required: ContextKind::CrossReplica, found, advice })
}

/// Returns the elements of a tensor of any shape as f64, in order.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(to_host(tensor)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?)
}

/// Returns the pairs of corresponding elements of two tensors. `first` and `second` name the tensors in the error
/// if their shapes differ.
pub(super) fn pairs(
    operation: &'static str,
    [first, second]: [&str; 2],
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Iterator<Item = (f64, f64)> + use<>> {
    if a.dims() != b.dims() {
        let reason = format!(
            "{first} have shape {:?}, {second} {:?}; pass the same number of both",
            a.dims(),
            b.dims()
        );
        return Err(Error::invalid(operation, reason));
    }
    Ok(numbers(a)?.into_iter().zip(numbers(b)?))
}
