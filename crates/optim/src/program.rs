//! A rule's update as a list of operations on whole tensors, for devices whose memory no slice reaches.

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
}
