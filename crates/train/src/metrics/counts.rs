//! The sums that all metrics consist of, to which replicas add.

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
    /// Creates counts that are zeros.
    pub(super) fn new(strategy: &Strategy, name: &str, dims: &[usize]) -> Result<Self> {
        let zeros = HostTensor::zeros(distribute_tensor::DType::F64, dims)?;
        let create = || {
            Variable::builder(name, zeros)
                .synchronization(VariableSynchronization::OnRead)
                .aggregation(VariableAggregation::Sum)
                .trainable(false)
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
                    advice: "each replica counts its own examples: call it in the closure of run",
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

/// Refuses reads in a replica, which has only its own copy.
fn outside(operation: &'static str) -> Result<()> {
    let (found, replica) = (current_kind(), get_replica_context());
    if found == ContextKind::CrossReplica || replica.is_some_and(|replica| replica.strategy().is_default()) {
        return Ok(());
    }
    let advice = "call it after run, or in a merge function";
    Err(Error::WrongContext { operation, required: ContextKind::CrossReplica, found, advice })
}

/// Returns the elements of a tensor of any shape, in order.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(to_host(tensor)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?)
}

/// Returns the pairs of elements of two tensors of the same shape.
pub(super) fn pairs(
    operation: &'static str,
    [first, second]: [&str; 2],
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Iterator<Item = (f64, f64)> + use<>> {
    if a.dims() != b.dims() {
        let reason = format!(
            "{first} are of shape {:?}, {second} of {:?}; give as many of the one as of the other",
            a.dims(),
            b.dims()
        );
        return Err(Error::invalid(operation, reason));
    }
    Ok(numbers(a)?.into_iter().zip(numbers(b)?))
}
