//! [`Cardinality`]: the number of elements of a dataset.

/// The number of elements in one pass over a dataset, as far as it is known without running the pass.
#[doc(alias = "tf.data.Dataset.cardinality")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// Exactly this number of elements.
    Finite(usize),
    /// The dataset never ends.
    #[doc(alias = "tf.data.INFINITE_CARDINALITY")]
    #[doc(alias = "INFINITE_CARDINALITY")]
    Infinite,
    /// The number is not known before the pass, as for generators, files and filters.
    #[doc(alias = "tf.data.UNKNOWN_CARDINALITY")]
    #[doc(alias = "UNKNOWN_CARDINALITY")]
    Unknown,
}

impl Cardinality {
    /// Returns the number of elements; `None` if it is infinite or not known.
    pub fn finite(self) -> Option<usize> {
        match self {
            Cardinality::Finite(n) => Some(n),
            _ => None,
        }
    }

    /// Applies `f` to a finite number. Infinite and unknown cardinalities stay the same.
    pub(crate) fn map(self, f: impl FnOnce(usize) -> usize) -> Self {
        match self {
            Cardinality::Finite(n) => Cardinality::Finite(f(n)),
            other => other,
        }
    }
}

impl std::fmt::Display for Cardinality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cardinality::Finite(1) => f.write_str("1 element"),
            Cardinality::Finite(n) => write!(f, "{n} elements"),
            Cardinality::Infinite => f.write_str("never ends"),
            Cardinality::Unknown => f.write_str("length unknown"),
        }
    }
}
