//! Variables of dtypes that no optimizer trains: they have to be frozen.

use crate::Trained;
use crate::checks::missing::listed;
use candle_core::{DType, Var};
use distribute_base::{Error, Result};

/// Whether optimizers train variables of this one's dtype.
pub(crate) fn is_trained(variable: &Var) -> bool {
    matches!(variable.dtype(), DType::F32 | DType::F64)
}

/// The error of an optimizer whose model has only these variables.
pub(crate) fn none_to_train(unfit: &[(String, Var)]) -> Error {
    let reason = if unfit.is_empty() {
        "the model has no variables to train; build it with replicate".to_owned()
    } else {
        format!(
            "optimizers train f32 and f64, and the model has only {}; build it with vb.to_dtype(DType::F32)",
            described(unfit)
        )
    };
    Error::invalid("Optimizer::new", reason)
}

impl Trained {
    /// Refuses a step while there are variables that can't be trained, and that nobody has frozen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with their names.
    pub(crate) fn require_fit(&self, operation: &'static str) -> Result<()> {
        if self.unfit.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "optimizers train f32 and f64, and the model has {}; freeze them, by optimizer.freeze(|name| ..), or make them f32, by \
             vb.to_dtype(DType::F32)",
            described(&self.unfit)
        );
        Err(Error::invalid(operation, reason))
    }
}

fn described(unfit: &[(String, Var)]) -> String {
    let names: Vec<&str> = unfit.iter().map(|(name, _)| name.as_str()).collect();
    let mut dtypes: Vec<String> =
        unfit.iter().map(|(_, variable)| format!("{:?}", variable.dtype())).collect();
    dtypes.sort();
    dtypes.dedup();
    format!("variables of {}: {}", dtypes.join(" and "), listed(&names))
}

#[cfg(test)]
mod tests {
    use crate::Sgd;
    use candle_core::Tensor;
    use candle_nn::{Init, VarBuilder};
    use distribute_base::internal::deposit;
    use distribute_strategies::MirroredStrategy;

    #[test]
    fn of_frozen_variables_no_gradient_is_used() {
        let strategy = MirroredStrategy::cpus(1).unwrap();
        let build = |vb: VarBuilder| -> candle_core::Result<[Tensor; 2]> {
            Ok([vb.get_with_hints(2, "a", Init::Const(1.))?, vb.get_with_hints(2, "b", Init::Const(1.))?])
        };
        let model = strategy.replicate(build).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap().freeze(|name| name == "a").unwrap();
        let [a, b] = &model.models().values()[0];
        let used = || [a, b, &a.affine(2., 0.).unwrap(), &b.detach()].map(deposit::is_used);
        let mut bucket = Some(optimizer.trained.buckets.take(0, strategy.generation(), None));
        assert_eq!(deposit::collect(&mut bucket, used), [false, true, true, false]);
        // Elsewhere nothing is known of an optimizer.
        assert_eq!(used(), [true, true, true, false]);
    }
}
