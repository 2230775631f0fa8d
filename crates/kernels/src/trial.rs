//! The input numbers with which a kernel is tried, and the expected results.

use super::fault::Fault;
use candle_core::{Device, Result, Tensor};
use distribute_base::internal::Number;
use distribute_optim::{Kernel, Operation, Precision, Program};
use distribute_tensor::random::Draws;

/// The number of kinds of numbers. The trial covers all combinations of these kinds for three inputs.
const KINDS: usize = 12;
/// The number of elements: all combinations of kinds, followed by random numbers. It is not a multiple of a block, so
/// that some threads of the last block have no element.
const COUNT: usize = KINDS * KINDS * KINDS + 1025;

/// Checks that `launch` computes the same bits as the host for a program, except that all NaNs are equal. The inputs
/// include all kinds of numbers. The constants are replaced by distinct ones, because those of a step may hide errors:
/// its learning rate may be 0, for example.
///
/// No standard defines the exact results of powers. Exponents are therefore tried with two values: with 0, for which
/// every power is 1, and with another number, for which the results only have to be close.
pub(crate) fn check(
    program: &Program,
    precision: Precision,
    device: &Device,
    launch: impl Fn(&Kernel, &[Tensor]) -> Result<Vec<Tensor>>,
) -> std::result::Result<(), Fault> {
    match precision {
        Precision::F32 => check_as::<f32>(program, device, launch),
        Precision::F64 => check_as::<f64>(program, device, launch),
    }
}

fn check_as<F: TrialNumber>(
    program: &Program,
    device: &Device,
    launch: impl Fn(&Kernel, &[Tensor]) -> Result<Vec<Tensor>>,
) -> std::result::Result<(), Fault> {
    let broken = || Fault::Run("its program reads results that do not exist".into());
    let folded = program.folded(F::PRECISION).ok_or_else(broken)?;
    let has_powers = folded.operations.iter().any(|operation| matches!(operation, Operation::Pow(..)));
    let (by_bits, nearly): (Same<F>, Same<F>) = (same_bits, is_near);
    compare(&with_constants::<F>(&folded, 0.), any_kind::<F>, by_bits, device, &launch)?;
    if has_powers {
        compare(&with_constants::<F>(&folded, 0.7), ordinary::<F>, nearly, device, &launch)?;
    }
    Ok(())
}

type Same<F> = fn(F, F) -> bool;

fn compare<F: TrialNumber>(
    program: &Program,
    number: impl Fn(usize, usize) -> F,
    same: Same<F>,
    device: &Device,
    launch: impl Fn(&Kernel, &[Tensor]) -> Result<Vec<Tensor>>,
) -> std::result::Result<(), Fault> {
    let broken = || Fault::Run("its program reads results that do not exist".into());
    let kernel = Kernel::new(program, F::PRECISION).ok_or_else(broken)?;
    let inputs = kernel.inputs.iter().map(|input| input + 1).max().unwrap_or_default().max(1);
    let of_input = |input: usize| (0..COUNT).map(|at| number(at, input)).collect();
    let inputs: Vec<Vec<F>> = (0..inputs).map(of_input).collect();
    let launched = || -> Result<Vec<Vec<F>>> {
        let tensors = inputs.iter().map(|values| Tensor::from_slice(values, COUNT, device));
        let made = launch(&kernel, &tensors.collect::<Result<Vec<_>>>()?)?;
        made.iter().map(Tensor::to_vec1).collect()
    };
    let found = launched().map_err(|error| Fault::Run(first_line(&error)))?;
    if found.len() != kernel.outputs || found.iter().any(|found| found.len() != COUNT) {
        return Err(Fault::Run(format!("it has {} results, not {}", found.len(), kernel.outputs)));
    }
    for at in 0..COUNT {
        let element: Vec<F> = inputs.iter().map(|values| values[at]).collect();
        let expected = program.of_element(&element).ok_or_else(broken)?;
        for (result, (expected, found)) in expected.into_iter().zip(&found).enumerate() {
            if !same(expected, found[at]) {
                return Err(Fault::Differs {
                    inputs: element.iter().map(|number| number.to_f64()).collect(),
                    result,
                    found: found[at].to_f64(),
                    expected: expected.to_f64(),
                });
            }
        }
    }
    Ok(())
}

/// Returns the first line of candle's error, without the backtrace.
pub(crate) fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().into()
}

/// Returns the program with other constants, which are all distinct, and with `exponent` in place of every exponent.
fn with_constants<F: TrialNumber>(program: &Program, exponent: f64) -> Program {
    let mut tried = program.clone();
    let mut last = 0.3;
    for operation in &mut tried.operations {
        if let Operation::Constant(number) = operation {
            last += 0.17;
            *number = F::of(last).to_f64();
        }
    }
    for operation in &program.operations {
        if let Operation::Pow(_, exponents) = *operation {
            tried.operations[exponents] = Operation::Constant(F::of(exponent).to_f64());
        }
    }
    tried
}

trait TrialNumber: Number {
    const PRECISION: Precision;
    /// The smallest positive number, the largest number, and the tolerance for the results of programs with powers.
    const LIMITS: (Self, Self, f64);
}

impl TrialNumber for f32 {
    const PRECISION: Precision = Precision::F32;
    const LIMITS: (f32, f32, f64) = (f32::from_bits(1), f32::MAX, 1e-3);
}

impl TrialNumber for f64 {
    const PRECISION: Precision = Precision::F64;
    const LIMITS: (f64, f64, f64) = (f64::from_bits(1), f64::MAX, 1e-9);
}

/// Returns the random numbers for the input with the given index.
fn draws(input: usize) -> Draws {
    Draws::new(input as u64, 0)
}

/// Returns a number between −2 and 2.
fn ordinary<F: TrialNumber>(at: usize, input: usize) -> F {
    F::of(4. * draws(input).uniform(at as u64) - 2.)
}

/// Returns a number that depends only on the position and the index of the input. It may be zero, infinite, NaN, tiny
/// or huge: the first positions have all combinations of such kinds in three inputs.
fn any_kind<F: TrialNumber>(at: usize, input: usize) -> F {
    let (least, most, _) = F::LIMITS;
    let number = ordinary::<F>(at, input);
    let kind = if at < KINDS.pow(3) {
        at / KINDS.pow(input as u32 % 3) % KINDS
    } else {
        draws(input).bits((COUNT + at) as u64) as usize % (2 * KINDS)
    };
    match kind {
        0 => F::of(0.),
        1 => F::of(-0.),
        2 => least,
        3 => F::of(-1000.) * least,
        4 => most,
        5 => F::of(-1.) * most,
        6 => F::of(f64::INFINITY),
        7 => F::of(f64::NEG_INFINITY),
        8 => F::of(f64::NAN),
        9 => number * F::of(1e-20),
        10 => number * F::of(1e15),
        _ => number,
    }
}

fn same_bits<F: TrialNumber>(a: F, b: F) -> bool {
    let (a, b) = (a.to_f64(), b.to_f64());
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn is_near<F: TrialNumber>(a: F, b: F) -> bool {
    let (a, b) = (a.to_f64(), b.to_f64());
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= F::LIMITS.2 * a.abs().max(b.abs()).max(1.)
}
