//! Running statistics. Each replica writes its own copy, and a read outside `run` returns the mean.

use crate::strategy::Strategy;
use crate::variables::Variable;
use candle_core::Tensor;
use distribute_base::internal::{lock, to_device};
use distribute_base::{Error, Result};
use distribute_tensor::{Leaf, ReduceOp};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

/// A variable with synchronization ON_READ and aggregation MEAN, whose mean skips replicas that have
/// processed no rows.
#[derive(Clone)]
pub(super) struct Running {
    variable: Variable,
    /// The value to which all copies were last set together. If a replica's copy still has this value, the replica has
    /// processed no rows since then, and the mean skips it.
    common: Arc<Mutex<Tensor>>,
}

impl Running {
    pub(super) fn new(strategy: &Strategy, name: &str, initial: &Tensor) -> Result<Self> {
        let variable = Variable::statistics(strategy, name, initial)?;
        Ok(Self { variable, common: Arc::new(Mutex::new(initial.copy()?)) })
    }

    /// Returns the variable, which has one copy per replica.
    pub(super) fn variable(&self) -> &Variable {
        &self.variable
    }

    pub(super) fn set(&self, value: &Tensor) -> Result<()> {
        let mut common = self.common();
        self.variable.vars().try_for_each(|copy| copy.set(&to_device(value, copy.device())?))?;
        *common = value.copy()?;
        Ok(())
    }

    /// Returns the mean over the replicas of all workers that have processed rows, or the common value if there are
    /// none. If the copies of these replicas are equal, the mean is bit-identical to them. All workers must make this
    /// call.
    #[track_caller]
    pub(super) fn mean(&self) -> Result<Tensor> {
        let copies = self.variable.gather_copies(Location::caller())?;
        let common = self.common().clone();
        let before = elements(&common)?;
        let (mut moved, mut values) = (Vec::new(), Vec::new());
        for copy in copies {
            let Leaf::Candle(tensor) = &copy else { continue };
            let now = elements(tensor)?;
            if now != before {
                moved.push(copy);
                values.push(now);
            }
        }
        if moved.is_empty() {
            return Ok(common.copy()?);
        }
        if values.windows(2).all(|pair| pair[0] == pair[1]) {
            moved.truncate(1);
        }
        match Leaf::reduce(ReduceOp::Mean, &moved)? {
            Leaf::Candle(mean) => Ok(mean.copy()?),
            other => Err(Error::invalid("get", format!("a mean of variables became {}", other.kind()))),
        }
    }

    /// Returns `true` if any copy in this process differs from the common value.
    pub(super) fn has_changed(&self) -> Result<bool> {
        let before = elements(&self.common())?;
        for copy in self.variable.vars() {
            if elements(copy)? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns `true` if all elements of the common value are equal to `value`.
    pub(super) fn is_filled_with(&self, value: f64) -> Result<bool> {
        Ok(elements(&self.common())?.iter().all(|bits| *bits == value.to_bits()))
    }

    /// Sets the common value without changing the copies, which the caller has already restored.
    pub(super) fn set_common(&self, common: Tensor) {
        *self.common() = common;
    }

    /// Locks and returns the common value of the copies.
    pub(super) fn common(&self) -> MutexGuard<'_, Tensor> {
        lock(&self.common)
    }
}

/// Returns the bits of the elements. Unlike floating-point numbers, the bits of NaN are equal to themselves.
fn elements(tensor: &Tensor) -> Result<Vec<u64>> {
    let elements = tensor.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()?;
    Ok(elements.into_iter().map(f64::to_bits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mirrored;
    use candle_core::Device;

    #[test]
    fn the_mean_of_equal_copies_is_their_value_to_the_bit() {
        let strategy = mirrored(8);
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let values: Vec<f32> = (1..100).map(|i| (i as f32 * 0.37).sin() / 3.).collect();
        let running = Running::new(&strategy, "bn.running_mean", &tensor(&[0.; 99])).unwrap();
        // A copy that has seen no rows is not counted.
        for equal in 1..=8 {
            for copy in running.variable().vars().take(equal) {
                copy.set(&tensor(&values)).unwrap();
            }
            assert_eq!(running.mean().unwrap().to_vec1::<f32>().unwrap(), values, "{equal} copies");
        }
        // Copies that differ give their mean.
        let other: Vec<f32> = values.iter().map(|x| 9. * x).collect();
        running.variable().vars().next().unwrap().set(&tensor(&other)).unwrap();
        let mean = running.mean().unwrap().to_vec1::<f32>().unwrap();
        assert!(mean.iter().zip(&values).all(|(mean, x)| (mean - 2. * x).abs() < 1e-6));
    }
}
