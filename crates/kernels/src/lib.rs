//! Update rules on devices: execution of a rule's program as candle's operations or, on GPUs of CUDA, as a single
//! kernel.
//!
//! Programs use [`distribute`](https://docs.rs/distribute). Its optimizers call [`Programs::run`].
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | a rule's program as candle's operations |
//! | `trial` | the numbers with which a kernel is tried, and the expected results |
//! | `trusted` | the kernels of each device, each compiled and tried once; the compiler is a trait that tests implement |
//! | `fault` | the reasons why a kernel is not used |
//! | `cuda` | compiling and launching kernels, through candle's CUDA device |

// - **INV-71** A rule's kernel is used on a GPU only after a trial there has given the host's results for the same
//   numbers, bit for bit (powers: nearly). Otherwise candle's operations are used, with one warning. The trial,
//   before the first step with that kernel, waits for the device. Tests: `kernels/src/trusted/tests.rs`, and on a GPU
//   `optimizer/src/update/devices/cuda_tests.rs`.

#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod cuda;
#[cfg(any(feature = "cuda", test))]
mod fault;
pub mod program;
#[cfg(any(feature = "cuda", test))]
mod trial;
#[cfg(any(feature = "cuda", test))]
mod trusted;

use candle_core::Tensor;
use distribute_base::Result;
use distribute_optim::Program;

/// An executor of the programs of one step, which keeps their kernels. There are only a few programs, because variables
/// with the same rule and rate share one.
#[derive(Default)]
pub struct Programs {
    #[cfg(feature = "cuda")]
    prepared: Vec<cuda::Prepared>,
}

impl Programs {
    /// Computes the new values of the variable and its slots for each replica. See [`program::run`]. If all devices
    /// have a kernel, each replica launches it once. Otherwise all replicas use candle's operations, so that their
    /// results are bit-identical.
    ///
    /// # Errors
    /// Returns the errors of [`program::run`], or candle's error if a launch fails.
    pub fn run(
        &mut self,
        rule: &str,
        program: &Program,
        replicas: &[Vec<Tensor>],
    ) -> Result<Vec<Vec<Tensor>>> {
        match self.run_kernels(rule, program, replicas) {
            Some(made) => Ok(made?),
            None => replicas.iter().map(|inputs| program::run(program, inputs)).collect(),
        }
    }

    #[cfg(feature = "cuda")]
    fn run_kernels(
        &mut self,
        rule: &str,
        program: &Program,
        replicas: &[Vec<Tensor>],
    ) -> Option<candle_core::Result<Vec<Vec<Tensor>>>> {
        let indices = replicas.iter().map(|inputs| self.prepared_index(rule, program, inputs.first()?));
        let indices = indices.collect::<Option<Vec<_>>>()?;
        let kernels = indices.into_iter().map(|index| &self.prepared[index]);
        Some(kernels.zip(replicas).map(|(kernel, inputs)| kernel.run(inputs)).collect())
    }

    /// Returns the index of the prepared kernel for tensors like `like`; `None` if candle's operations are used.
    #[cfg(feature = "cuda")]
    fn prepared_index(&mut self, rule: &str, program: &Program, like: &Tensor) -> Option<usize> {
        let known = self.prepared.iter().position(|prepared| prepared.is_of(program, like));
        let index = match known {
            Some(index) => index,
            None => {
                self.prepared.push(cuda::Prepared::new(rule, program, like)?);
                self.prepared.len() - 1
            }
        };
        self.prepared[index].is_trusted().then_some(index)
    }

    #[cfg(not(feature = "cuda"))]
    fn run_kernels(
        &mut self,
        _: &str,
        _: &Program,
        _: &[Vec<Tensor>],
    ) -> Option<candle_core::Result<Vec<Vec<Tensor>>>> {
        None
    }
}
