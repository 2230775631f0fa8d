//! Execution of a rule's program with candle's operations.

use candle_core::{DType, Tensor};
use distribute_base::internal::choose;
use distribute_base::{Error, Result};
use distribute_optim::{Operation, Precision, Program};

/// The result of an operation.
#[derive(Clone)]
enum Value {
    /// A number that is the same for all elements, rounded to the element type.
    Number(f64),
    Tensor(Tensor),
}

/// Computes the new values of the variable and its slots. `inputs` are the variable, the gradient and the slots. All
/// inputs and results have the same shape, dtype and device. No result shares memory with another tensor.
///
/// Intermediate results are freed after their last use, so only a few of them exist at the same time.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the inputs are neither f32 nor f64, the program reads results that do not exist, or an
///   exponent is not constant.
/// - [`Error::Candle`]: an operation fails.
pub fn run(program: &Program, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let Some(like) = inputs.first() else { return Ok(Vec::new()) };
    // Operations on numbers alone are computed here.
    let Some(program) = precision(like).and_then(|precision| program.folded(precision)) else {
        let reason = "the program of the rule must be for f32 or f64, and may only read existing results and powers \
                      with constant exponents";
        return Err(Error::invalid("optimizer step", reason));
    };
    let mut last_use: Vec<usize> = (0..program.operations.len()).collect();
    for (at, operation) in program.operations.iter().enumerate() {
        operation.operands().for_each(|operand| last_use[operand] = at);
    }
    for output in &program.outputs {
        last_use[*output] = usize::MAX;
    }
    let mut made: Vec<Option<Value>> = Vec::with_capacity(program.operations.len());
    for (at, operation) in program.operations.iter().enumerate() {
        let value = apply(operation, &made, inputs, like)?;
        operation.operands().filter(|operand| last_use[*operand] == at).for_each(|used| made[used] = None);
        made.push((last_use[at] > at).then_some(value));
    }
    let result = |(number, output): (usize, &usize)| match made.get(*output).and_then(Option::as_ref) {
        Some(Value::Tensor(tensor)) => {
            let shared = program.outputs[..number].contains(output)
                || inputs.iter().any(|input| input.id() == tensor.id());
            Ok(if shared { tensor.copy()? } else { tensor.clone() })
        }
        Some(Value::Number(number)) => Ok(full(*number, like)?.contiguous()?),
        None => candle_core::bail!("the program has no result {output}"),
    };
    Ok(program.outputs.iter().enumerate().map(result).collect::<candle_core::Result<_>>()?)
}

fn apply(
    operation: &Operation,
    made: &[Option<Value>],
    inputs: &[Tensor],
    like: &Tensor,
) -> candle_core::Result<Value> {
    let of = |at: usize| match made.get(at) {
        Some(Some(value)) => Ok(value),
        _ => candle_core::bail!("operation {at} of the program has no result"),
    };
    let tensor = |at: usize| match of(at)? {
        Value::Tensor(tensor) => Ok(tensor.clone()),
        Value::Number(number) => full(*number, like),
    };
    Ok(match *operation {
        Operation::Input(number) => match inputs.get(number) {
            Some(input) => Value::Tensor(input.clone()),
            None => candle_core::bail!("the program reads input {number} of {}", inputs.len()),
        },
        Operation::Constant(number) => Value::Number(number),
        Operation::Add(a, b) => match (of(a)?, of(b)?) {
            (Value::Tensor(x), Value::Number(n)) | (Value::Number(n), Value::Tensor(x)) => {
                Value::Tensor(x.affine(1., *n)?)
            }
            _ => Value::Tensor((tensor(a)? + tensor(b)?)?),
        },
        Operation::Sub(a, b) => match (of(a)?, of(b)?) {
            (Value::Tensor(a), Value::Number(b)) => Value::Tensor(a.affine(1., -b)?),
            (Value::Number(a), Value::Tensor(b)) => Value::Tensor(b.affine(-1., *a)?),
            _ => Value::Tensor((tensor(a)? - tensor(b)?)?),
        },
        Operation::Mul(a, b) => match (of(a)?, of(b)?) {
            (Value::Tensor(x), Value::Number(n)) | (Value::Number(n), Value::Tensor(x)) => {
                Value::Tensor(x.affine(*n, 0.)?)
            }
            _ => Value::Tensor((tensor(a)? * tensor(b)?)?),
        },
        // candle would multiply by a number's reciprocal.
        Operation::Div(a, b) => Value::Tensor((tensor(a)? / tensor(b)?)?),
        Operation::Sqrt(a) => Value::Tensor(tensor(a)?.sqrt()?),
        Operation::Pow(a, b) => match of(b)? {
            Value::Number(exponent) => Value::Tensor(tensor(a)?.powf(*exponent)?),
            Value::Tensor(_) => candle_core::bail!("an exponent of the program is not a number"),
        },
        Operation::Abs(a) => Value::Tensor(tensor(a)?.abs()?),
        Operation::CopySign(a, b) => {
            let (size, sign) = (tensor(a)?.abs()?, tensor(b)?);
            let minus = size.neg()?;
            // For −0, only the reciprocal is less than 0.
            let of_zeros = choose(&sign.recip()?.lt(0.)?, &minus, &size)?;
            Value::Tensor(choose(&sign.lt(0.)?, &minus, &of_zeros)?)
        }
        Operation::Select { value, bound, then, otherwise } => {
            let is_at_most = tensor(value)?.le(&tensor(bound)?)?;
            Value::Tensor(choose(&is_at_most, &tensor(then)?, &tensor(otherwise)?)?)
        }
    })
}

/// Returns the element type of a tensor; `None` if it is neither f32 nor f64.
pub(crate) fn precision(like: &Tensor) -> Option<Precision> {
    match like.dtype() {
        DType::F32 => Some(Precision::F32),
        DType::F64 => Some(Precision::F64),
        _ => None,
    }
}

/// Returns a tensor with the shape of `like` in which every element is `number`. Only one element is stored in memory.
///
/// # Errors
/// Returns candle's error if the device has too little memory.
pub fn full(number: f64, like: &Tensor) -> candle_core::Result<Tensor> {
    // By two operations of the device, because a number from the host would need a copy.
    Tensor::zeros((), like.dtype(), like.device())?.affine(0., number)?.broadcast_as(like.shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use distribute_optim::{
        Adagrad, Adam, AdamW, Averaged, Float, Formula, Ftrl, Lion, Momentum, NAdam, RmsProp, Rule, RuleExt,
        Sgd, SlotSpec, Step,
    };

    /// Checks that a program with candle's operations gives the same bits as the rule on slices, also for negative
    /// zeros.
    fn same_as_on_slices<F: Float + candle_core::WithDType>(rule: &dyn Rule) {
        let given: Vec<F> = [0.3, -2., 1e-7, 0., -0., 7e6, 0.125].map(<F as Float>::from_f64).to_vec();
        let gradients: Vec<F> = [0., 0.1, -3., 1e-20, 1e10, -0.7, 0.2].map(<F as Float>::from_f64).to_vec();
        let on_device = |values: &[F]| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
        let (mut values, layout) = (given.clone(), rule.slots());
        let mut slots: Vec<Vec<F>> =
            layout.iter().map(|slot| vec![<F as Float>::from_f64(slot.initial); given.len()]).collect();
        let mut inputs = vec![on_device(&values), on_device(&gradients)];
        inputs.extend(slots.iter().map(|slot| on_device(slot)));
        for finished in 0..5 {
            let at = Step::after(finished, 0.013);
            let mut views: Vec<&mut [F]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            rule.update(at, &mut values, &gradients, &mut views).unwrap();
            let made = run(&rule.program(at).unwrap().unwrap(), &inputs).unwrap();
            for (made, expected) in made.iter().zip(std::iter::once(&values).chain(&slots)) {
                assert_eq!(&made.to_vec1::<F>().unwrap(), expected, "{rule:?} after {finished} steps");
            }
            inputs = [&made[..1], &inputs[1..2], &made[1..]].concat();
        }
    }

    fn of_both(rule: &dyn Rule) {
        same_as_on_slices::<f32>(rule);
        same_as_on_slices::<f64>(rule);
    }

    #[test]
    fn programs_of_candle_have_the_bits_of_rules_on_slices() {
        of_both(&Sgd);
        of_both(&Momentum::new(0.9));
        of_both(&Momentum::nesterov(0.9));
        of_both(&Adagrad::default());
        of_both(&Adam::default());
        of_both(&AdamW::default());
        of_both(&RmsProp { momentum: 0.5, ..RmsProp::default() });
        of_both(&Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() });
        of_both(&Ftrl { lr_power: -0.7, ..Ftrl::default() });
        of_both(&NAdam::default());
        of_both(&Lion { weight_decay: 0.1, ..Lion::default() });
        of_both(&Averaged { rule: std::sync::Arc::new(Adam::default()), momentum: 0.9 });
    }

    /// A rule with operations that the rules of this crate do not use.
    #[derive(Debug)]
    struct Rest;

    impl Formula for Rest {
        type Slots<T: Copy> = [T; 3];
        fn label(&self) -> &'static str {
            "rest"
        }
        fn layout(&self) -> [SlotSpec; 3] {
            [SlotSpec::zeros("sign"), SlotSpec::zeros("gradient"), SlotSpec::zeros("number")]
        }
        fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 3]) -> (F, [F; 3]) {
            let rate = F::from_f64(at.learning_rate());
            move |var, grad, [_, _, number]| {
                let third = F::from_f64(1.) / F::from_f64(3.) + F::from_f64(2.).sqrt().powf(rate).abs();
                (
                    var - rate / (grad.abs() + third) / third,
                    [rate.copysign(var), grad, third + number - number],
                )
            }
        }
    }

    #[test]
    fn signs_numbers_and_inputs_that_are_results_have_the_same_bits_too() {
        of_both(&Rest);
    }

    #[test]
    fn results_share_no_memory_with_existing_tensors() {
        let input = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let program = Program { operations: vec![Operation::Input(0)], outputs: vec![0, 0] };
        let made = run(&program, std::slice::from_ref(&input)).unwrap();
        assert!(made.iter().all(|made| made.id() != input.id()) && made[0].id() != made[1].id());
    }
}
