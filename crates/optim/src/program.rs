//! A rule's update as a list of operations on whole tensors, for devices whose memory no slice reaches.

use crate::Float;

/// What a rule does with a variable, its gradient and its slots in one step: operations, each on the results of earlier ones.
///
/// Whoever has tensors in place of slices makes these operations, one after another, each for all elements. With the rounding of
/// IEEE 754, they have the bits of [`RuleExt::update`](crate::RuleExt::update).
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// In the order in which they are made. Operands are positions in this list.
    pub operations: Vec<Operation>,
    /// Which of them are the variable and its slots after the step, in that order.
    pub outputs: Vec<usize>,
}

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// One operation, on the results of those at the given positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// The variable, its gradient, and the slots in their order, from 0.
    Input(usize),
    /// One number for all elements, which is rounded to their type.
    Constant(f64),
    /// a + b.
    Add(usize, usize),
    /// a − b.
    Sub(usize, usize),
    /// a · b.
    Mul(usize, usize),
    /// a / b.
    Div(usize, usize),
    /// √a.
    Sqrt(usize),
    /// a to the power of b, which is a number.
    Pow(usize, usize),
    /// |a|.
    Abs(usize),
    /// |a| with the sign of b.
    CopySign(usize, usize),
    /// `then` where `value` ≤ `bound`, else `otherwise`.
    Select {
        /// What is compared.
        value: usize,
        /// With what.
        bound: usize,
        /// The result where it is at most that.
        then: usize,
        /// The result elsewhere, and where either is NaN.
        otherwise: usize,
    },
}

impl Operation {
    /// On whose results it is.
    pub fn operands(&self) -> impl Iterator<Item = usize> + use<> {
        let all = match *self {
            Operation::Input(_) | Operation::Constant(_) => [None; 4],
            Operation::Sqrt(a) | Operation::Abs(a) => [Some(a), None, None, None],
            Operation::Add(a, b)
            | Operation::Sub(a, b)
            | Operation::Mul(a, b)
            | Operation::Div(a, b)
            | Operation::Pow(a, b)
            | Operation::CopySign(a, b) => [Some(a), Some(b), None, None],
            Operation::Select { value, bound, then, otherwise } => {
                [Some(value), Some(bound), Some(then), Some(otherwise)]
            }
        };
        all.into_iter().flatten()
    }

    /// Its result, from the results of others and the inputs, with the rounding of their type; `None` where one is not there.
    fn result<F: Float>(
        self,
        of: impl Fn(usize) -> Option<F>,
        input: impl Fn(usize) -> Option<F>,
    ) -> Option<F> {
        Some(match self {
            Operation::Input(number) => input(number)?,
            Operation::Constant(number) => F::from_f64(number),
            Operation::Add(a, b) => of(a)? + of(b)?,
            Operation::Sub(a, b) => of(a)? - of(b)?,
            Operation::Mul(a, b) => of(a)? * of(b)?,
            Operation::Div(a, b) => of(a)? / of(b)?,
            Operation::Sqrt(a) => of(a)?.sqrt(),
            Operation::Pow(a, b) => of(a)?.powf(of(b)?),
            Operation::Abs(a) => of(a)?.abs(),
            Operation::CopySign(a, b) => of(a)?.copysign(of(b)?),
            Operation::Select { value, bound, then, otherwise } => {
                of(value)?.select_at_most(of(bound)?, of(then)?, of(otherwise)?)
            }
        })
    }

    /// What it comes to on numbers alone; `None` where one of its operands is none.
    fn number<F: Float + Into<f64>>(self, numbers: &[Option<f64>]) -> Option<f64> {
        self.result(|at| numbers[at].map(F::from_f64), |_| None).map(Into::into)
    }

    /// The same on the results of others.
    fn on(self, place: impl Fn(usize) -> usize) -> Self {
        match self {
            Operation::Input(_) | Operation::Constant(_) => self,
            Operation::Add(a, b) => Operation::Add(place(a), place(b)),
            Operation::Sub(a, b) => Operation::Sub(place(a), place(b)),
            Operation::Mul(a, b) => Operation::Mul(place(a), place(b)),
            Operation::Div(a, b) => Operation::Div(place(a), place(b)),
            Operation::Sqrt(a) => Operation::Sqrt(place(a)),
            Operation::Pow(a, b) => Operation::Pow(place(a), place(b)),
            Operation::Abs(a) => Operation::Abs(place(a)),
            Operation::CopySign(a, b) => Operation::CopySign(place(a), place(b)),
            Operation::Select { value, bound, then, otherwise } => Operation::Select {
                value: place(value),
                bound: place(bound),
                then: place(then),
                otherwise: place(otherwise),
            },
        }
    }
}

impl Program {
    /// The same for elements of one type: what is done with numbers alone is done here, rounded to that type, and what no result needs is left
    /// out. Which operations remain depends on no number.
    ///
    /// `None` where an operation asks for a result that is not before it, or an exponent is no number.
    pub fn folded(&self, precision: Precision) -> Option<Program> {
        let mut numbers: Vec<Option<f64>> = Vec::with_capacity(self.operations.len());
        for (at, operation) in self.operations.iter().enumerate() {
            if operation.operands().any(|operand| operand >= at) {
                return None;
            }
            if matches!(*operation, Operation::Pow(_, exponent) if numbers[exponent].is_none()) {
                return None;
            }
            numbers.push(match precision {
                Precision::F32 => operation.number::<f32>(&numbers),
                Precision::F64 => operation.number::<f64>(&numbers),
            });
        }
        let mut is_needed = vec![false; self.operations.len()];
        for output in &self.outputs {
            *is_needed.get_mut(*output)? = true;
        }
        for (at, operation) in self.operations.iter().enumerate().rev() {
            if is_needed[at] && numbers[at].is_none() {
                operation.operands().for_each(|operand| is_needed[operand] = true);
            }
        }
        let mut place = vec![0; self.operations.len()];
        let mut operations = Vec::new();
        for (at, operation) in self.operations.iter().enumerate().filter(|(at, _)| is_needed[*at]) {
            place[at] = operations.len();
            operations.push(match numbers[at] {
                Some(number) => Operation::Constant(number),
                None => operation.on(|operand| place[operand]),
            });
        }
        let outputs = self.outputs.iter().map(|output| place[*output]).collect();
        Some(Program { operations, outputs })
    }

    /// The results for one element, from its inputs: what all ways to make the operations come to.
    ///
    /// `None` where an operation asks for a result or an input that is not there.
    pub fn of_element<F: Float>(&self, inputs: &[F]) -> Option<Vec<F>> {
        let mut made: Vec<F> = Vec::with_capacity(self.operations.len());
        for operation in &self.operations {
            let result = operation.result(|at| made.get(at).copied(), |input| inputs.get(input).copied())?;
            made.push(result);
        }
        self.outputs.iter().map(|output| made.get(*output).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(program: &Program) -> Vec<f64> {
        let number = |operation: &Operation| match operation {
            Operation::Constant(number) => Some(*number),
            _ => None,
        };
        program.operations.iter().filter_map(number).collect()
    }

    fn of_numbers(numbers: [f64; 2]) -> Program {
        use Operation::*;
        let operations = vec![
            Input(1),
            Constant(numbers[0]),
            Constant(numbers[1]),
            Div(1, 2),
            Sqrt(3),
            Pow(4, 2),
            CopySign(5, 1),
            Select { value: 6, bound: 1, then: 3, otherwise: 6 },
            Add(0, 7),
            Mul(0, 0),
        ];
        Program { operations, outputs: vec![8, 1, 8] }
    }

    #[test]
    fn numbers_are_folded_with_the_rounding_of_elements_and_what_nobody_needs_is_left_out() {
        let folded = of_numbers([1., 3.]).folded(Precision::F32).unwrap();
        let third = 1f32 / 3.;
        let power = third.sqrt().powf(3.);
        assert!(power <= 1.);
        let expected = [
            Operation::Input(1),
            Operation::Constant(1.),
            Operation::Constant(f64::from(third)),
            Operation::Add(0, 2),
        ];
        assert_eq!((&folded.operations[..], &folded.outputs[..]), (&expected[..], &[3, 1, 3][..]));
        let folded = of_numbers([1., 3.]).folded(Precision::F64).unwrap();
        assert_eq!(constants(&folded), [1., 1. / 3.]);
        // NaN is not at most anything.
        let folded = of_numbers([-1., 3.]).folded(Precision::F64).unwrap();
        assert!(constants(&folded)[1].is_nan());
        assert_eq!(folded.folded(Precision::F64).map(|again| again.operations.len()), Some(4));
    }

    #[test]
    fn which_operations_remain_depends_on_no_number() {
        let kinds = |numbers| {
            let folded = of_numbers(numbers).folded(Precision::F64).unwrap();
            folded.operations.iter().map(std::mem::discriminant).collect::<Vec<_>>()
        };
        for numbers in [[0., 1.], [1., 0.], [0., 0.], [-0., f64::NAN], [f64::INFINITY, 1.]] {
            assert_eq!(kinds(numbers), kinds([0.3, 0.7]));
        }
    }

    #[test]
    fn a_program_that_asks_for_what_is_not_there_is_none() {
        use Operation::*;
        let program = |operations: &[Operation], outputs: &[usize]| Program {
            operations: operations.to_vec(),
            outputs: outputs.to_vec(),
        };
        for broken in [
            program(&[Sqrt(0)], &[0]),
            program(&[Add(1, 1), Input(0)], &[0]),
            program(&[Input(0)], &[1]),
            program(&[Input(0), Pow(0, 0)], &[1]),
        ] {
            assert_eq!(broken.folded(Precision::F32), None, "{broken:?}");
        }
        assert_eq!(program(&[Input(1)], &[0]).of_element(&[1f32]), None);
        assert_eq!(program(&[Sqrt(0)], &[0]).of_element(&[1f32]), None);
        assert_eq!(program(&[Input(0)], &[1]).of_element(&[1f32]), None);
    }
}
