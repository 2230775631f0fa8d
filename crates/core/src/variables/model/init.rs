//! Initial values of variables. They depend on the seed, the variable's name and the element's position, but not on the
//! thread, the replica or the shard.

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use distribute_base::internal::random;
use distribute_base::{Error, Result};
use distribute_ps_tables::Initializer;
use distribute_tensor::Leaf;
use distribute_tensor::random::{Distribution, Draws, RandomElement};

/// A variable's initial value, as requested by a model.
pub(crate) struct ModelInit<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a Shape,
    pub(crate) candle_dtype: DType,
    pub(super) init: &'a Init,
    pub(super) seed: u64,
}

impl ModelInit<'_> {
    /// Computes the values as a tensor.
    pub(crate) fn values(&self) -> Result<Tensor> {
        values(self.init, self.seed, self.name, self.shape, self.candle_dtype)
    }

    pub(crate) fn dtype(&self) -> Result<distribute_tensor::DType> {
        Ok(Leaf::Candle(Tensor::zeros(0, self.candle_dtype, &Device::Cpu)?).dtype()?)
    }

    /// Returns an initializer that computes the same values elsewhere, for example on a server.
    pub(crate) fn initializer(&self) -> Result<Initializer> {
        let initializer = Initializer::new(distribution(self.init, self.shape), self.seed, self.name);
        initializer.check(self.dtype()?)?;
        Ok(initializer)
    }
}

/// Computes the initial values of the variable `name`, in CPU memory.
fn values(init: &Init, seed: u64, name: &str, shape: &Shape, dtype: DType) -> Result<Tensor> {
    let draw = random::draws(seed, name);
    let distribution = match distribution(init, shape) {
        Distribution::Constant(value) => {
            return Ok((Tensor::ones(shape, dtype, &Device::Cpu)? * value)?.to_dtype(dtype)?);
        }
        distribution => distribution,
    };
    if !dtype.is_float() {
        let reason = format!(
            "variable {name} of {dtype:?} cannot be initialized randomly; use a constant or a float dtype"
        );
        return Err(Error::InvalidArgument { operation: "replicate", reason });
    }
    let count = shape.elem_count();
    Ok(match dtype {
        // For a large table, an f64 copy would be most of the memory that a program ever needs.
        DType::F32 => Tensor::from_vec(numbers::<f32>(distribution, draw, count), shape, &Device::Cpu),
        _ => {
            Tensor::from_vec(numbers::<f64>(distribution, draw, count), shape, &Device::Cpu)?.to_dtype(dtype)
        }
    }?)
}

/// Returns the first `count` numbers of a distribution.
fn numbers<T: RandomElement>(distribution: Distribution, draws: Draws, count: usize) -> Vec<T> {
    let mut numbers = vec![T::of_f64(0.); count];
    distribution.fill(draws, 0, &mut numbers);
    numbers
}

/// Returns the distribution of an initializer for a variable with the given shape.
pub(super) fn distribution(init: &Init, shape: &Shape) -> Distribution {
    let uniform = |lo: f64, up: f64| Distribution::Uniform { lo, up };
    let normal = |mean: f64, stdev: f64| Distribution::Normal { mean, stdev };
    match init {
        Init::Const(value) => Distribution::Constant(*value),
        Init::Uniform { lo, up } => uniform(*lo, *up),
        Init::Randn { mean, stdev } => normal(*mean, *stdev),
        Init::Kaiming { dist, fan, non_linearity } => {
            let stdev = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Uniform => uniform(-(3f64.sqrt() * stdev), 3f64.sqrt() * stdev),
                NormalOrUniform::Normal => normal(0., stdev),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(init: Init, seed: u64, name: &str) -> Vec<f32> {
        let shape = Shape::from((100, 50));
        let values = values(&init, seed, name, &shape, DType::F32).unwrap();
        values.flatten_all().unwrap().to_vec1().unwrap()
    }

    // INV-8
    #[test]
    fn values_depend_on_seed_and_name_only() {
        let init = Init::Randn { mean: 0., stdev: 1. };
        assert_eq!(draw(init, 1, "a"), draw(init, 1, "a"));
        assert_ne!(draw(init, 1, "a"), draw(init, 2, "a"));
        assert_ne!(draw(init, 1, "a"), draw(init, 1, "b"));
    }

    #[test]
    fn distributions_have_their_moments() {
        let moments = |v: Vec<f32>| {
            let mean = v.iter().sum::<f32>() / v.len() as f32;
            (mean, (v.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / v.len() as f32).sqrt())
        };
        let (mean, stdev) = moments(draw(Init::Randn { mean: 3., stdev: 2. }, 0, "w"));
        assert!((mean - 3.).abs() < 0.1 && (stdev - 2.).abs() < 0.1, "{mean} {stdev}");
        let (mean, stdev) = moments(draw(Init::Uniform { lo: -1., up: 1. }, 0, "w"));
        assert!(mean.abs() < 0.05 && (stdev - 1. / 3f32.sqrt()).abs() < 0.02, "{mean} {stdev}");
        let (_, stdev) = moments(draw(candle_nn::init::DEFAULT_KAIMING_UNIFORM, 0, "w"));
        assert!((stdev - (2f32 / 50.).sqrt()).abs() < 0.01, "{stdev}");
        assert!(draw(Init::Const(0.5), 0, "w").iter().all(|x| *x == 0.5));
    }
}
