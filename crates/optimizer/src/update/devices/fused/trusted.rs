//! The kernels of this process: each is compiled once for a device, and used where it has passed its trial.

use super::fault::Fault;
use super::trial;
use candle_core::{Device, Result, Tensor};
use distribute_base::internal::lock;
use distribute_optim::{Kernel, Program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A device with a compiler.
pub(crate) trait Compiler {
    /// The identity of a device.
    type Id: Copy + PartialEq;
    /// A kernel, ready to be launched.
    type Function;

    fn id(&self) -> Self::Id;

    fn device(&self) -> &Device;

    /// # Errors
    /// [`Fault::Compile`], and [`Fault::Run`] where the device cannot take what was compiled.
    fn compile(&self, kernel: &Kernel) -> std::result::Result<Self::Function, Fault>;

    /// The results, in memory of their own, from the program's inputs, all of one shape.
    ///
    /// # Errors
    /// candle's, for example if the device is out of memory.
    fn launch(&self, function: &Self::Function, kernel: &Kernel, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// The kernels of each device, by their text; `None` for one that must not be used.
type Known<Id, Function> = Vec<(Id, BTreeMap<String, Option<Arc<Function>>>)>;

pub(crate) struct Trusted<C: Compiler> {
    known: Mutex<Known<C::Id, C::Function>>,
}

impl<C: Compiler> Trusted<C> {
    pub(crate) const fn new() -> Self {
        Self { known: Mutex::new(Vec::new()) }
    }

    /// The kernel of this program, if it can be trusted on this device. When it is first asked for, it is compiled and
    /// tried, for which this waits; a fault is told then, once.
    pub(crate) fn get(
        &self,
        compiler: &C,
        program: &Program,
        kernel: &Kernel,
        tell: impl FnOnce(&Fault),
    ) -> Option<Arc<C::Function>> {
        // Held meanwhile: who else wants a kernel would compile the same.
        let mut known = lock(&self.known);
        let id = compiler.id();
        let of_device = match known.iter().position(|(of, _)| *of == id) {
            Some(at) => at,
            None => {
                known.push((id, BTreeMap::new()));
                known.len() - 1
            }
        };
        let of_device = &mut known[of_device].1;
        if let Some(function) = of_device.get(&kernel.source) {
            return function.clone();
        }
        let tried = compiler.compile(kernel).and_then(|function| {
            trial::check(program, kernel.precision, compiler.device(), |kernel, inputs| {
                compiler.launch(&function, kernel, inputs)
            })?;
            Ok(Arc::new(function))
        });
        let function = tried.inspect_err(tell).ok();
        of_device.insert(kernel.source.clone(), function.clone());
        function
    }
}

#[cfg(test)]
mod tests;
