use super::*;
use candle_core::Result as CandleResult;
use distribute_base::internal::Number;
use distribute_optim::{
    Adagrad, Adam, AdamW, Averaged, Ftrl, Lion, Momentum, NAdam, RmsProp, Rule, Sgd, Step,
};
use distribute_optim::{Operation, Precision};
use std::cell::Cell;

/// A function that computes the result of a simulated device for one element. Its arguments are the program, with the
/// constants of the call, and the element's inputs.
type Element<'a> = &'a dyn Fn(&Program, &[f32]) -> CandleResult<Vec<f32>>;

/// A simulated device, which computes results with `of_element` instead of compiling the source code.
struct Played<'a> {
    number: usize,
    /// The folded program whose kernels are compiled.
    program: Program,
    of_element: Element<'a>,
    refuses: Option<Fault>,
    compiled: Cell<usize>,
}

/// Returns the results that the host computes.
fn right(program: &Program, inputs: &[f32]) -> CandleResult<Vec<f32>> {
    Ok(program.of_element(inputs).unwrap())
}

impl<'a> Played<'a> {
    fn new(program: &Program, precision: Precision, of_element: Element<'a>) -> Self {
        let program = program.folded(precision).unwrap();
        Self { number: 0, program, of_element, refuses: None, compiled: Cell::new(0) }
    }

    /// Returns the program with the constants that a kernel is called with.
    fn called(&self, constants: &[f64]) -> Program {
        let mut called = self.program.clone();
        let mut constants = constants.iter();
        for operation in &mut called.operations {
            if let Operation::Constant(number) = operation {
                *number = *constants.next().unwrap();
            }
        }
        assert_eq!(constants.next(), None);
        called
    }

    fn results<F: Number>(
        inputs: &[Tensor],
        of_element: impl Fn(&[F]) -> CandleResult<Vec<F>>,
    ) -> CandleResult<Vec<Tensor>> {
        let values = inputs.iter().map(Tensor::to_vec1::<F>).collect::<CandleResult<Vec<_>>>()?;
        let element = |at: usize| values.iter().map(|values| values[at]).collect::<Vec<F>>();
        let all =
            (0..values[0].len()).map(|at| of_element(&element(at))).collect::<CandleResult<Vec<_>>>()?;
        let result = |number: usize| {
            Tensor::from_vec(
                all.iter().map(|results| results[number]).collect::<Vec<F>>(),
                all.len(),
                &Device::Cpu,
            )
        };
        (0..all[0].len()).map(result).collect()
    }
}

impl Compiler for Played<'_> {
    type Id = usize;
    /// The source code of the kernel.
    type Function = String;

    fn id(&self) -> usize {
        self.number
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn compile(&self, kernel: &Kernel) -> std::result::Result<String, Fault> {
        self.compiled.set(self.compiled.get() + 1);
        match &self.refuses {
            Some(Fault::Compile(reason)) => Err(Fault::Compile(reason.clone())),
            _ => Ok(kernel.source.clone()),
        }
    }

    fn launch(&self, function: &String, kernel: &Kernel, inputs: &[Tensor]) -> CandleResult<Vec<Tensor>> {
        assert_eq!(function, &kernel.source, "constants have changed the text");
        let program = self.called(&kernel.constants);
        match kernel.precision {
            Precision::F32 => Self::results::<f32>(inputs, |element| (self.of_element)(&program, element)),
            Precision::F64 => {
                Self::results::<f64>(inputs, |element| Ok(program.of_element(element).unwrap()))
            }
        }
    }
}

fn program(rule: &dyn Rule, rate: f64) -> Program {
    rule.program(Step::after(0, rate)).unwrap().unwrap()
}

/// Returns the fault that is reported for a device, and checks that it is reported only once.
fn told(played: &Played<'_>, program: &Program, precision: Precision) -> Option<Fault> {
    let trusted: TrustedKernels<Played<'_>> = TrustedKernels::new();
    let kernel = Kernel::new(program, precision).unwrap();
    let mut told = None;
    let report = |fault: &Fault| {
        told = Some(match fault {
            Fault::Compile(reason) => Fault::Compile(reason.clone()),
            Fault::Run(reason) => Fault::Run(reason.clone()),
            Fault::Differs { inputs, result, found, expected } => {
                let (result, found, expected) = (*result, *found, *expected);
                Fault::Differs { inputs: inputs.clone(), result, found, expected }
            }
        });
    };
    let function = trusted.get(played, program, &kernel, report);
    assert_eq!(function.is_none(), told.is_some());
    // Neither compiled nor reported again.
    let again = trusted.get(played, program, &kernel, |fault| panic!("told again: {fault}"));
    assert_eq!((again, played.compiled.get()), (function, 1));
    told
}

fn of_f32(rule: &dyn Rule, of_element: Element<'_>) -> Option<Fault> {
    let program = program(rule, 0.1);
    told(&Played::new(&program, Precision::F32, of_element), &program, Precision::F32)
}

fn is_different(fault: Option<Fault>) -> bool {
    matches!(fault, Some(Fault::Differs { .. }))
}

// INV-71
#[test]
fn kernels_that_match_the_host_are_trusted_for_any_rule() {
    let rules: [&dyn Rule; 12] = [
        &Sgd,
        &Momentum::new(0.9),
        &Momentum::nesterov(0.9),
        &Adagrad::default(),
        &Adam::default(),
        &AdamW::default(),
        &RmsProp { momentum: 0.5, ..RmsProp::default() },
        &Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() },
        &Ftrl { lr_power: -0.7, ..Ftrl::default() },
        &NAdam::default(),
        &Lion { weight_decay: 0.1, ..Lion::default() },
        &Averaged { rule: std::sync::Arc::new(Adam::default()), momentum: 0.9 },
    ];
    for rule in rules {
        for precision in [Precision::F32, Precision::F64] {
            let program = program(rule, 0.1);
            let played = Played::new(&program, precision, &right);
            assert_eq!(told(&played, &program, precision), None, "{rule:?}");
        }
    }
}

// INV-71
#[test]
fn a_kernel_that_rounds_in_another_way_is_not() {
    let contracted = |program: &Program, inputs: &[f32]| {
        let Operation::Constant(rate) =
            program.operations.iter().find(|o| matches!(o, Operation::Constant(_))).unwrap()
        else {
            unreachable!()
        };
        Ok(vec![(-*rate as f32).mul_add(inputs[1], inputs[0])])
    };
    assert!(is_different(of_f32(&Sgd, &contracted)));
    let flushed = |number: f32| if number.is_subnormal() { 0. } else { number };
    let flushing = |program: &Program, inputs: &[f32]| {
        let made = right(program, &inputs.iter().map(|input| flushed(*input)).collect::<Vec<_>>())?;
        Ok(made.into_iter().map(flushed).collect())
    };
    assert!(is_different(of_f32(&Sgd, &flushing)));
    // The last bit of one result.
    let off = |program: &Program, inputs: &[f32]| {
        let mut made = right(program, inputs)?;
        made[2] = if inputs[1] > 1.9 { made[2].next_up() } else { made[2] };
        Ok(made)
    };
    assert!(is_different(of_f32(&Adam::default(), &off)));
    let no_sign =
        |program: &Program, inputs: &[f32]| Ok(right(program, inputs)?.iter().map(|x| x + 0.).collect());
    assert!(is_different(of_f32(&Momentum::new(0.9), &no_sign)));
}

// INV-71
#[test]
fn a_kernel_that_takes_one_constant_for_another_is_not_though_the_learning_rate_be_0() {
    let reversed = |program: &Program, inputs: &[f32]| {
        let mut other = program.clone();
        let at: Vec<usize> = (0..other.operations.len())
            .filter(|at| matches!(other.operations[*at], Operation::Constant(_)))
            .collect();
        for (to, from) in at.iter().zip(at.iter().rev()) {
            other.operations[*to] = program.operations[*from];
        }
        right(&other, inputs)
    };
    let program = program(&Adam { beta1: 0., ..Adam::default() }, 0.);
    assert!(is_different(told(&Played::new(&program, Precision::F32, &reversed), &program, Precision::F32)));
}

// INV-71
#[test]
fn powers_may_differ_in_their_last_bits_and_no_more() {
    let ftrl = Ftrl { lr_power: -0.7, ..Ftrl::default() };
    let with = |program: &Program, inputs: &[f32], change: &dyn Fn(f32, f32) -> f32| {
        let mut made: Vec<f32> = Vec::new();
        for (at, operation) in program.operations.iter().enumerate() {
            made.push(match *operation {
                Operation::Pow(a, b) => change(made[a].powf(made[b]), made[b]),
                _ => {
                    // Earlier results are constants here, because the powers among them were changed.
                    let mut before = program.clone();
                    before.operations.truncate(at + 1);
                    before.outputs = vec![at];
                    for (operation, result) in before.operations.iter_mut().zip(&made) {
                        *operation = Operation::Constant(f64::from(*result));
                    }
                    right(&before, inputs)?[0]
                }
            });
        }
        Ok(program.outputs.iter().map(|output| made[*output]).collect::<Vec<f32>>())
    };
    let of_last_bit = |program: &Program, inputs: &[f32]| {
        with(program, inputs, &|power, exponent| if exponent == 0. { power } else { power.next_up() })
    };
    assert_eq!(of_f32(&ftrl, &of_last_bit), None);
    let wrong = |program: &Program, inputs: &[f32]| with(program, inputs, &|power, _| power * 1.01);
    assert!(is_different(of_f32(&ftrl, &wrong)));
    let root = |program: &Program, inputs: &[f32]| {
        with(program, inputs, &|power, exponent| if exponent == 0. { power } else { power.sqrt() })
    };
    assert!(is_different(of_f32(&ftrl, &root)));
}

// INV-71
#[test]
fn a_missing_compiler_and_a_failing_device_are_reported_once() {
    let program = program(&Sgd, 0.1);
    let mut played = Played::new(&program, Precision::F32, &right);
    played.refuses = Some(Fault::Compile("no compiler".into()));
    let fault = told(&played, &program, Precision::F32).unwrap();
    assert_eq!(fault.to_string(), "CUDA's compiler, NVRTC, cannot compile it: no compiler");
    let failing = |_: &Program, _: &[f32]| -> CandleResult<Vec<f32>> { candle_core::bail!("no memory") };
    let fault = of_f32(&Sgd, &failing).unwrap();
    assert_eq!(fault.to_string(), "the GPU cannot run it: no memory");
}

#[test]
fn each_device_has_kernels_of_its_own() {
    let program = program(&Sgd, 0.1);
    let kernel = Kernel::new(&program, Precision::F32).unwrap();
    let trusted: TrustedKernels<Played<'_>> = TrustedKernels::new();
    let compiled = [0, 1, 0].map(|number| {
        let played = Played { number, ..Played::new(&program, Precision::F32, &right) };
        assert!(trusted.get(&played, &program, &kernel, |fault| panic!("{fault}")).is_some());
        played.compiled.get()
    });
    assert_eq!(compiled, [1, 1, 0]);
}
