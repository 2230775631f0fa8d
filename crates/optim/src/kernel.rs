//! A rule's program as a function in CUDA C, which executes it in a single pass over memory.

use crate::program::{Operation, Precision, Program};
use std::fmt::{self, Write};

/// The source code of a GPU function that executes a [`Program`], with its parameters.
///
/// The function takes these arguments, in this order:
/// - the number of elements, as an unsigned 64-bit integer;
/// - the addresses of the `inputs`;
/// - for each output, the address of a separate buffer with the size of an input;
/// - the `constants`, in the type of the elements.
///
/// The grid and its blocks have one dimension and may have any size, because threads loop over the remaining
/// elements.
///
/// The source code does not depend on the values of constants. It is the same in all steps of a rule.
///
/// ```
/// use distribute_optim::{Precision, Kernel, Momentum, Rule, Step};
///
/// let kernel_of = |finished, rate| -> Option<Kernel> {
///     Kernel::new(&Momentum::new(0.9).program(Step::after(finished, rate)).ok()??, Precision::F32)
/// };
/// let (first, last) = (kernel_of(0, 0.).unwrap(), kernel_of(999, 1.).unwrap());
/// assert_eq!(first.source, last.source);
/// assert_ne!(first.constants, last.constants);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The source code in C, for NVIDIA's NVRTC. It has no includes.
    pub source: String,
    /// The indices of the program's inputs that the function reads.
    pub inputs: Vec<usize>,
    /// The number of outputs that the function writes: the variable and its slots.
    pub outputs: usize,
    /// The values of the constants, rounded to the type of the elements.
    pub constants: Vec<f64>,
    /// The type of the elements.
    pub precision: Precision,
}

impl Kernel {
    /// The name of the function in the source code.
    pub const NAME: &str = "distribute_update";

    /// The compiler options for rounding as in IEEE 754. With them, results are bit-identical to those of
    /// [`RuleExt::update`](crate::RuleExt::update), unless the program contains an [`Operation::Pow`].
    ///
    /// Products and sums are rounded separately, subnormal numbers are kept, and quotients and roots are correctly
    /// rounded. The rounding of powers depends on the math library.
    pub const OPTIONS: [&str; 4] = ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

    /// Creates the kernel of a program. Returns `None` if an operation uses a later result, an exponent is not
    /// constant, or an output does not exist.
    pub fn new(program: &Program, precision: Precision) -> Option<Self> {
        let Program { operations, outputs } = program.folded(precision)?;
        let mut kernel = Kernel {
            source: String::new(),
            inputs: Vec::new(),
            outputs: outputs.len(),
            constants: Vec::new(),
            precision,
        };
        for operation in &operations {
            match *operation {
                Operation::Input(number) if !kernel.inputs.contains(&number) => kernel.inputs.push(number),
                Operation::Constant(number) => kernel.constants.push(number),
                _ => {}
            }
        }
        // Writing to a string does not fail.
        kernel.write(&operations, &outputs).ok()?;
        Some(kernel)
    }

    fn write(&mut self, operations: &[Operation], outputs: &[usize]) -> fmt::Result {
        // C's functions on float end with f.
        let (float, f) = match self.precision {
            Precision::F32 => ("float", "f"),
            Precision::F64 => ("double", ""),
        };
        let text = &mut self.source;
        write!(text, "extern \"C\" __global__ void {}(\n    const unsigned long long count", Self::NAME)?;
        for number in &self.inputs {
            write!(text, ",\n    const {float}* __restrict__ const in{number}")?;
        }
        for output in 0..self.outputs {
            write!(text, ",\n    {float}* __restrict__ const out{output}")?;
        }
        for number in 0..self.constants.len() {
            write!(text, ",\n    const {float} c{number}")?;
        }
        text.push_str(
            ") {
    const unsigned long long all = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count; i += all) {
",
        );
        let mut constants = 0..;
        for (at, operation) in operations.iter().enumerate() {
            write!(text, "        const {float} v{at} = ")?;
            match *operation {
                Operation::Input(number) => write!(text, "in{number}[i]"),
                Operation::Constant(_) => write!(text, "c{}", constants.next().unwrap_or_default()),
                Operation::Add(a, b) => write!(text, "v{a} + v{b}"),
                Operation::Sub(a, b) => write!(text, "v{a} - v{b}"),
                Operation::Mul(a, b) => write!(text, "v{a} * v{b}"),
                Operation::Div(a, b) => write!(text, "v{a} / v{b}"),
                Operation::Sqrt(a) => write!(text, "sqrt{f}(v{a})"),
                Operation::Pow(a, b) => write!(text, "pow{f}(v{a}, v{b})"),
                Operation::Abs(a) => write!(text, "fabs{f}(v{a})"),
                Operation::CopySign(a, b) => write!(text, "copysign{f}(v{a}, v{b})"),
                Operation::Select { value, bound, then, otherwise } => {
                    write!(text, "v{value} <= v{bound} ? v{then} : v{otherwise}")
                }
            }?;
            text.push_str(";\n");
        }
        for (number, output) in outputs.iter().enumerate() {
            writeln!(text, "        out{number}[i] = v{output};")?;
        }
        text.push_str("    }\n}\n");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Ftrl, Rule, Step};

    fn kernel(rule: &dyn Rule, finished: u64, rate: f64) -> Kernel {
        Kernel::new(&rule.program(Step::after(finished, rate)).unwrap().unwrap(), Precision::F32).unwrap()
    }

    #[test]
    fn the_text_is_the_same_in_all_steps_and_the_numbers_are_each_step_s() {
        let adam = Adam { beta1: 0., ..Adam::default() };
        let first = kernel(&adam, 0, 0.);
        for (finished, rate) in [(0, 1.), (1, 0.01), (999, 0.01), (u64::MAX, 1.)] {
            assert_eq!(kernel(&adam, finished, rate).source, first.source);
        }
        // The same rule with other constants has the same source.
        assert_eq!(kernel(&Adam::default(), 0, 0.1).source, first.source);
        assert_eq!((first.inputs, first.outputs), (vec![0, 1, 2, 3], 3));
        let at = Step::after(2, 0.5);
        let lr_t = 0.5 * at.bias_correction(0.999).sqrt() / at.bias_correction(0.);
        let expected = [0., 1., 0.999, 1. - 0.999, lr_t, 1e-7].map(|number| f64::from(number as f32));
        let mut constants = kernel(&adam, 2, 0.5).constants;
        let mut expected = expected.to_vec();
        constants.sort_by(f64::total_cmp);
        expected.sort_by(f64::total_cmp);
        assert_eq!(constants, expected);
    }

    #[test]
    fn another_formula_is_another_text() {
        let root = kernel(&Ftrl::default(), 0, 0.1);
        assert_ne!(root.source, kernel(&Ftrl { lr_power: -0.7, ..Ftrl::default() }, 0, 0.1).source);
        let double = Ftrl::default().program(Step::after(0, 0.1)).unwrap().unwrap();
        assert_ne!(root.source, Kernel::new(&double, Precision::F64).unwrap().source);
    }
}
