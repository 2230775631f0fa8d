//! Rules and initializers.

use distribute_optim::{
    Adagrad, Adam, AdamW, Ftrl, Lion, Momentum, NAdam, RmsProp, RowAdagrad, RuleSpec, Sgd,
};
use distribute_tensor::random::Distribution;
use pyo3::prelude::*;

/// An update rule, which the servers apply.
#[pyclass(frozen, module = "distribute_client")]
#[derive(Clone)]
pub struct Rule(pub RuleSpec);

#[pymethods]
impl Rule {
    #[staticmethod]
    fn sgd() -> Self {
        Self(RuleSpec::Sgd(Sgd))
    }

    #[staticmethod]
    #[pyo3(signature = (momentum=0.9, *, nesterov=false))]
    fn momentum(momentum: f64, nesterov: bool) -> Self {
        Self(RuleSpec::Momentum(Momentum { momentum, nesterov }))
    }

    #[staticmethod]
    #[pyo3(signature = (beta1=0.9, beta2=0.999, epsilon=1e-7, *, lazy=false))]
    fn adam(beta1: f64, beta2: f64, epsilon: f64, lazy: bool) -> Self {
        Self(RuleSpec::Adam(Adam { beta1, beta2, epsilon, lazy }))
    }

    #[staticmethod]
    #[pyo3(signature = (beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01, *, lazy=false))]
    fn adamw(beta1: f64, beta2: f64, epsilon: f64, weight_decay: f64, lazy: bool) -> Self {
        Self(RuleSpec::AdamW(AdamW { beta1, beta2, epsilon, weight_decay, lazy }))
    }

    #[staticmethod]
    #[pyo3(signature = (beta1=0.9, beta2=0.999, epsilon=1e-7, *, lazy=false))]
    fn nadam(beta1: f64, beta2: f64, epsilon: f64, lazy: bool) -> Self {
        Self(RuleSpec::NAdam(NAdam { beta1, beta2, epsilon, lazy }))
    }

    #[staticmethod]
    #[pyo3(signature = (beta1=0.9, beta2=0.99, weight_decay=0.0, *, lazy=false))]
    fn lion(beta1: f64, beta2: f64, weight_decay: f64, lazy: bool) -> Self {
        Self(RuleSpec::Lion(Lion { beta1, beta2, weight_decay, lazy }))
    }

    #[staticmethod]
    #[pyo3(signature = (initial_accumulator_value=0.1, epsilon=1e-7))]
    fn adagrad(initial_accumulator_value: f64, epsilon: f64) -> Self {
        Self(RuleSpec::Adagrad(Adagrad { initial_accumulator_value, epsilon }))
    }

    #[staticmethod]
    #[pyo3(signature = (initial_accumulator_value=0.0, epsilon=1e-8))]
    fn row_adagrad(initial_accumulator_value: f64, epsilon: f64) -> Self {
        Self(RuleSpec::RowAdagrad(RowAdagrad { initial_accumulator_value, epsilon }))
    }

    #[staticmethod]
    #[pyo3(signature = (rho=0.9, momentum=0.0, epsilon=1e-7))]
    fn rmsprop(rho: f64, momentum: f64, epsilon: f64) -> Self {
        Self(RuleSpec::RmsProp(RmsProp { rho, momentum, epsilon }))
    }

    #[staticmethod]
    #[pyo3(signature = (initial_accumulator_value=0.1, lr_power=-0.5, l1=0.0, l2=0.0, l2_shrinkage=0.0, beta=0.0))]
    fn ftrl(
        initial_accumulator_value: f64,
        lr_power: f64,
        l1: f64,
        l2: f64,
        l2_shrinkage: f64,
        beta: f64,
    ) -> Self {
        Self(RuleSpec::Ftrl(Ftrl { initial_accumulator_value, lr_power, l1, l2, l2_shrinkage, beta }))
    }

    fn __repr__(&self) -> String {
        format!("Rule({:?})", self.0)
    }
}

/// The initial values of a variable: functions of the seed, the name and the position.
#[pyclass(frozen, module = "distribute_client")]
#[derive(Clone, Copy)]
pub struct Initializer {
    pub distribution: Distribution,
    pub seed: u64,
}

impl Initializer {
    /// The initializer for variables that are created without one.
    pub const ZEROS: Self = Self { distribution: Distribution::Constant(0.), seed: 0 };

    /// Returns this initializer for the variable `variable`, whose name is part of the seed.
    pub fn of(self, variable: &str) -> distribute_ps_tables::Initializer {
        distribute_ps_tables::Initializer::new(self.distribution, self.seed, variable)
    }
}

#[pymethods]
impl Initializer {
    #[staticmethod]
    fn constant(value: f64) -> Self {
        Self { distribution: Distribution::Constant(value), seed: 0 }
    }

    #[staticmethod]
    #[pyo3(signature = (low, high, *, seed=0))]
    fn uniform(low: f64, high: f64, seed: u64) -> Self {
        Self { distribution: Distribution::Uniform { lo: low, up: high }, seed }
    }

    #[staticmethod]
    #[pyo3(signature = (mean=0.0, stddev=1.0, *, seed=0))]
    fn normal(mean: f64, stddev: f64, seed: u64) -> Self {
        Self { distribution: Distribution::Normal { mean, stdev: stddev }, seed }
    }

    fn __repr__(&self) -> String {
        format!("Initializer({:?}, seed={})", self.distribution, self.seed)
    }
}
