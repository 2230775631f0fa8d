//! A rule's program as one kernel of a GPU: of CUDA's, in a build with it. Everywhere else it is made of candle's
//! operations.
//!
//! | module | what it is |
//! |---|---|
//! | `trial` | the numbers that a kernel is tried with, and what has to come out |
//! | `trusted` | which kernels there are, each compiled and tried once for a device, of a compiler that tests can play |
//! | `fault` | why a kernel is not used |
//! | `cuda` | compiling and launching, by candle's way to CUDA |

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", test))]
mod fault;
#[cfg(any(feature = "cuda", test))]
mod trial;
#[cfg(any(feature = "cuda", test))]
mod trusted;

use super::program;
use candle_core::Tensor;
use distribute_base::Result;
use distribute_optim::Program;

/// Makes the programs of one step, of which there are few: variables with the same rule and rate have the same.
#[derive(Default)]
pub(crate) struct Programs {
    #[cfg(feature = "cuda")]
    prepared: Vec<cuda::Prepared>,
}

impl Programs {
    /// Computes the variable and its slots after the step for each replica, see [`program::run`], by one launch each
    /// if all of their devices have a kernel: replicas get the same bits.
    pub(crate) fn run(
        &mut self,
        rule: &str,
        program: &Program,
        replicas: &[Vec<Tensor>],
    ) -> Result<Vec<Vec<Tensor>>> {
        match self.at_once(rule, program, replicas) {
            Some(made) => Ok(made?),
            None => replicas.iter().map(|inputs| program::run(program, inputs)).collect(),
        }
    }

    #[cfg(feature = "cuda")]
    fn at_once(
        &mut self,
        rule: &str,
        program: &Program,
        replicas: &[Vec<Tensor>],
    ) -> Option<candle_core::Result<Vec<Vec<Tensor>>>> {
        let places = replicas.iter().map(|inputs| self.place(rule, program, inputs.first()?));
        let places = places.collect::<Option<Vec<_>>>()?;
        let kernels = places.into_iter().map(|place| &self.prepared[place]);
        Some(kernels.zip(replicas).map(|(kernel, inputs)| kernel.run(inputs)).collect())
    }

    /// Returns the position of the prepared kernel for tensors like this one; `None` if candle's operations are used.
    #[cfg(feature = "cuda")]
    fn place(&mut self, rule: &str, program: &Program, like: &Tensor) -> Option<usize> {
        let known = self.prepared.iter().position(|prepared| prepared.is_of(program, like));
        let place = match known {
            Some(place) => place,
            None => {
                self.prepared.push(cuda::Prepared::new(rule, program, like)?);
                self.prepared.len() - 1
            }
        };
        self.prepared[place].is_trusted().then_some(place)
    }

    #[cfg(not(feature = "cuda"))]
    fn at_once(
        &mut self,
        _: &str,
        _: &Program,
        _: &[Vec<Tensor>],
    ) -> Option<candle_core::Result<Vec<Vec<Tensor>>>> {
        None
    }
}
