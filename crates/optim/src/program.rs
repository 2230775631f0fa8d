//! A rule's update as a list of operations on tensors, for devices whose memory cannot be accessed as slices.

use crate::Float;

/// The update of a variable and its slots in one step, as a list of operations on earlier results.
///
/// To execute a program on tensors, apply the operations in order, each to all elements. With rounding as in IEEE 754,
/// the results are bit-identical to those of [`RuleExt::update`](crate::RuleExt::update), except for powers, whose
/// rounding depends on the math library.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The operations, in the order of execution. Operands are positions in this list.
    pub operations: Vec<Operation>,
    /// The positions of the new values in `operations`: first the variable, then its slots.
    pub outputs: Vec<usize>,
}

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Elements of type `f32`.
    F32,
    /// Elements of type `f64`.
    F64,
}

/// An operation on the results of earlier operations, which are given by their positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// An input with the given index: 0 is the variable, 1 is its gradient, and the slots follow in order.
    Input(usize),
    /// The same number for all elements, rounded to their type.
    Constant(f64),
    /// The sum a + b.
    Add(usize, usize),
    /// The difference a − b.
    Sub(usize, usize),
    /// The product a · b.
    Mul(usize, usize),
    /// The quotient a / b.
    Div(usize, usize),
    /// The square root √a.
    Sqrt(usize),
    /// The power aᵇ. The exponent b must be constant: an [`Operation::Constant`], or a result that is computed from
    /// constants alone.
    Pow(usize, usize),
    /// The absolute value |a|.
    Abs(usize),
    /// The absolute value |a| with the sign of b.
    CopySign(usize, usize),
    /// The value of `then` if `value` ≤ `bound`, and that of `otherwise` if not.
    Select {
        /// The value that is compared.
        value: usize,
        /// The bound to compare with.
        bound: usize,
        /// The result if `value` is at most `bound`.
        then: usize,
        /// The result if `value` is greater than `bound`, or one of the two is NaN.
        otherwise: usize,
    },
}

impl Operation {
    /// Returns the positions of the operands of the operation.
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

    /// Computes the result, rounded to `F`. `of` and `input` return earlier results and inputs; the result is `None`
    /// if one of them does not exist.
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

    /// Computes the result if it depends only on constants; otherwise returns `None`. `numbers` contains the earlier
    /// results that are constants.
    fn number<F: Float + Into<f64>>(self, numbers: &[Option<f64>]) -> Option<f64> {
        self.result(|at| numbers[at].map(F::from_f64), |_| None).map(Into::into)
    }

    /// Returns the same operation with its operands at the positions that `place` returns.
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
    /// Returns the program for elements of one type, without unused operations and operations on constants only.
    ///
    /// Operations on constants are computed here, rounded to the type of the elements. Which operations remain does not
    /// depend on the values of constants. Returns `None` if an operation uses a later result, an exponent is not
    /// constant, or an output does not exist.
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

    /// Computes the outputs for one element from its inputs. All other ways of executing the program must have the same
    /// results, except for the rounding of powers.
    ///
    /// Returns `None` if an operation uses a result or an input that does not exist, or if an output does not exist.
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
    fn constants_are_folded_with_the_rounding_of_elements_and_unused_operations_are_omitted() {
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
        // NaN is not at most any bound.
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
    fn a_program_with_a_missing_input_is_invalid() {
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
