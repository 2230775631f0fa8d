//! The slots of rules, and the part of a variable that a rule needs at once.

/// The part of a variable that a rule needs at once. Updates may be partitioned at the borders of such parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// An element: the rule computes each from its own gradient and slots.
    #[default]
    Element,
    /// A complete row of a variable: all elements with the same first index. Each element of a vector is a row, and so
    /// is a scalar.
    Row,
    /// The complete variable.
    Variable,
}

/// The shape of a slot, as a function of the shape of its variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotShape {
    /// The shape of the variable.
    #[default]
    Variable,
    /// One number for each row of the variable. For a scalar, it is a scalar.
    Rows,
    /// The shape of the variable without its last dimension. If it has less than two dimensions, the slot is empty.
    RowFactor,
    /// The shape of the variable without its second last dimension. If it has less than two dimensions, the slot is
    /// empty.
    ColumnFactor,
    /// The shape of the variable if it has less than two dimensions. Otherwise the slot is empty.
    Unfactored,
}

impl SlotShape {
    /// Returns the shape of the slot of a variable with the given shape. Empty slots have shape `[0]`.
    ///
    /// ```
    /// use distribute_optim::SlotShape;
    /// assert_eq!(SlotShape::Rows.dims(&[5, 3]), [5]);
    /// assert_eq!(SlotShape::ColumnFactor.dims(&[2, 5, 3]), [2, 3]);
    /// assert_eq!(SlotShape::ColumnFactor.dims(&[5]), [0]);
    /// ```
    pub fn dims(self, variable: &[usize]) -> Vec<usize> {
        match (self, variable) {
            (Self::Variable, all) | (Self::Unfactored, all @ ([] | [_])) => all.to_vec(),
            (Self::Rows, all) => all.iter().take(1).copied().collect(),
            (Self::RowFactor, [outer @ .., rows, _]) => [outer, &[*rows]].concat(),
            (Self::ColumnFactor, [outer @ .., _, columns]) => [outer, &[*columns]].concat(),
            (Self::RowFactor | Self::ColumnFactor | Self::Unfactored, _) => vec![0],
        }
    }

    /// Returns the number of elements of the slot of a variable with the given shape.
    pub fn elements(self, variable: &[usize]) -> usize {
        match self {
            Self::Variable => variable.iter().product(),
            _ => self.dims(variable).iter().product(),
        }
    }

    /// Returns the number of elements of the slot that belong to each row of a variable with `row_len` elements per
    /// row. Returns `None` if the elements of the slot do not belong to rows.
    pub fn per_row(self, row_len: usize) -> Option<usize> {
        match self {
            Self::Variable => Some(row_len),
            Self::Rows => Some(1),
            _ => None,
        }
    }
}

/// The description of a slot: state that a rule keeps for each variable between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotSpec {
    /// The name of the slot, such as `"m"`. It is unique within the rule.
    pub name: &'static str,
    /// The initial value of all elements.
    pub initial: f64,
    /// The shape. A rule that updates each element separately only has slots with the shape of the variable.
    pub shape: SlotShape,
}

impl SlotSpec {
    /// Creates a slot with the shape of the variable, whose elements are initially `initial`.
    pub const fn new(name: &'static str, initial: f64) -> Self {
        SlotSpec { name, initial, shape: SlotShape::Variable }
    }

    /// Creates a slot with the shape of the variable, whose elements are initially 0.
    pub const fn zeros(name: &'static str) -> Self {
        Self::new(name, 0.0)
    }

    /// Returns the slot with another shape.
    pub const fn with_shape(self, shape: SlotShape) -> Self {
        SlotSpec { shape, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_the_variable() {
        let all = |variable: &[usize]| {
            use SlotShape::*;
            let shapes = [Variable, Rows, RowFactor, ColumnFactor, Unfactored];
            shapes.iter().for_each(|shape| {
                assert_eq!(shape.elements(variable), shape.dims(variable).iter().product::<usize>());
            });
            shapes.map(|shape| shape.dims(variable))
        };
        let of_scalar = [vec![], vec![], vec![0], vec![0], vec![]];
        assert_eq!(all(&[]), of_scalar);
        assert_eq!(all(&[4]), [vec![4], vec![4], vec![0], vec![0], vec![4]]);
        assert_eq!(all(&[4, 3]), [vec![4, 3], vec![4], vec![4], vec![3], vec![0]]);
        assert_eq!(all(&[2, 4, 3]), [vec![2, 4, 3], vec![2], vec![2, 4], vec![2, 3], vec![0]]);
        assert_eq!(all(&[0, 3])[1..4], [vec![0], vec![0], vec![3]]);
    }
}
