//! The kernels of this process. Each is compiled once per device, and is used only if it has passed a trial.

use super::fault::Fault;
use super::trial;
use candle_core::{Device, Result, Tensor};
use distribute_base::internal::lock;
use distribute_optim::{Kernel, Program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A device that can compile and launch kernels.
pub(crate) trait Compiler {
    /// A type that identifies a device.
    type Id: Copy + PartialEq;
    /// A compiled kernel that can be launched.
    type Function;

    fn id(&self) -> Self::Id;

    fn device(&self) -> &Device;

    /// Compiles a kernel for this device.
    ///
    /// # Errors
    /// - [`Fault::Compile`]: the kernel cannot be compiled.
    /// - [`Fault::Run`]: the device cannot load the compiled kernel.
    fn compile(&self, kernel: &Kernel) -> std::result::Result<Self::Function, Fault>;

    /// Launches a kernel, which computes the results from the inputs of the program. All inputs have the same shape.
    /// Results do not share memory.
    ///
    /// # Errors
    /// Returns candle's error, for example if the device is out of memory.
    fn launch(&self, function: &Self::Function, kernel: &Kernel, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// The kernels of each device, keyed by source code; `None` for kernels that must not be used.
type Kernels<Id, Function> = Vec<(Id, BTreeMap<String, Option<Arc<Function>>>)>;

pub(crate) struct TrustedKernels<C: Compiler> {
    kernels: Mutex<Kernels<C::Id, C::Function>>,
}

impl<C: Compiler> TrustedKernels<C> {
    pub(crate) const fn new() -> Self {
        Self { kernels: Mutex::new(Vec::new()) }
    }

    /// Returns the compiled kernel, or `None` if it must not be used on this device. The first call for a kernel
    /// compiles and tries it, and waits for the device. If there is a fault, only that call passes it to `report`.
    pub(crate) fn get(
        &self,
        compiler: &C,
        program: &Program,
        kernel: &Kernel,
        report: impl FnOnce(&Fault),
    ) -> Option<Arc<C::Function>> {
        // Held during the trial, because other threads would compile the same kernel.
        let mut kernels = lock(&self.kernels);
        let id = compiler.id();
        let of_device = match kernels.iter().position(|(of, _)| *of == id) {
            Some(at) => at,
            None => {
                kernels.push((id, BTreeMap::new()));
                kernels.len() - 1
            }
        };
        let of_device = &mut kernels[of_device].1;
        if let Some(function) = of_device.get(&kernel.source) {
            return function.clone();
        }
        let tried = compiler.compile(kernel).and_then(|function| {
            trial::check(program, kernel.precision, compiler.device(), |kernel, inputs| {
                compiler.launch(&function, kernel, inputs)
            })?;
            Ok(Arc::new(function))
        });
        let function = tried.inspect_err(report).ok();
        of_device.insert(kernel.source.clone(), function.clone());
        function
    }
}

#[cfg(test)]
mod tests;
