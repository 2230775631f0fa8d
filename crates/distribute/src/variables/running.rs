//! Running statistics: one component for each replica, which writes it alone; read from outside as their mean.

use crate::{Error, Result};
use candle_core::{Tensor, Var};
use distribute_tensor::{Leaf, ReduceOp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A variable of synchronization ON_READ and aggregation MEAN.
#[derive(Clone)]
pub(super) struct Running {
    components: Vec<Var>,
    /// What all components were when they were last set together. A replica that still has it has seen no rows since,
    /// so the mean leaves it out.
    common: Arc<Mutex<Tensor>>,
}

impl Running {
    pub(super) fn new(initial: &Tensor, replicas: usize) -> Result<Self> {
        let components = (0..replicas).map(|_| Ok(Var::from_tensor(initial)?)).collect::<Result<_>>()?;
        Ok(Self { components, common: Arc::new(Mutex::new(initial.copy()?)) })
    }

    pub(super) fn of_replica(&self, replica: usize) -> Option<&Var> {
        self.components.get(replica)
    }

    pub(super) fn set(&self, value: &Tensor) -> Result<()> {
        let mut common = self.common();
        self.components.iter().try_for_each(|component| component.set(value))?;
        *common = value.copy()?;
        Ok(())
    }

    /// The mean over the replicas that have seen rows; what all have in common, if none has.
    pub(super) fn mean(&self) -> Result<Tensor> {
        let common = self.common().clone();
        let before = elements(&common)?;
        let mut moved = Vec::new();
        for component in &self.components {
            if elements(component)? != before {
                moved.push(Leaf::Candle(component.as_detached_tensor()));
            }
        }
        if moved.is_empty() {
            return Ok(common.copy()?);
        }
        match Leaf::reduce(ReduceOp::Mean, &moved)? {
            Leaf::Candle(mean) => Ok(mean.copy()?),
            other => Err(Error::invalid("get", format!("a mean of variables became {}", other.kind()))),
        }
    }

    /// What the replicas have now, and what they last had in common.
    pub(super) fn state(&self) -> (Vec<Tensor>, Tensor) {
        let components = self.components.iter().map(|component| component.as_detached_tensor()).collect();
        (components, self.common().clone())
    }

    /// Sets what [`state`](Running::state) gave, on as many replicas.
    pub(super) fn set_state(&self, components: &[Tensor], common: Tensor) -> Result<()> {
        let mut mine = self.common();
        self.components.iter().zip(components).try_for_each(|(component, value)| component.set(value))?;
        *mine = common;
        Ok(())
    }

    fn common(&self) -> MutexGuard<'_, Tensor> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bits, so that NaN equals itself.
fn elements(tensor: &Tensor) -> Result<Vec<u64>> {
    let elements = tensor.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()?;
    Ok(elements.into_iter().map(f64::to_bits).collect())
}
