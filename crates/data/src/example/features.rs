//! [`Features`]: the features to parse from records, and the columns that they become.

use super::feature::{Feature, Kind};
use crate::file::ElementLimit;
use crate::{ElementSpec, Error, Result, TensorSpec};
use distribute_tensor::{DType, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// The named features to parse from records. Other features of a record are skipped.
///
/// [`parse`](Features::parse) converts records into columns.
#[derive(Clone, Debug)]
pub struct Features {
    /// The requested features, ordered by name.
    pub(super) wanted: Vec<(String, Wanted)>,
    pub(super) limit: ElementLimit,
}

impl Default for Features {
    fn default() -> Self {
        Self { wanted: Vec::new(), limit: ElementLimit::new("Features::element_limit") }
    }
}

/// A requested feature, with the way in which its values become a column: a [`FixedLen`] or a [`VarLen`].
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A feature with the same number of values in each record.
    Fixed(FixedLen),
    /// A feature with any number of values in each record.
    Var(VarLen),
}

/// A feature with the same number of values in each record. It becomes a column of shape `[records, shape...]`.
#[doc(alias = "tf.io.FixedLenFeature")]
#[doc(alias = "FixedLenFeature")]
#[derive(Clone, Debug)]
pub struct FixedLen {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) default: Option<Feature>,
}

impl FixedLen {
    /// Creates a feature of `float32` with the given shape per record; `[]` means one number.
    pub fn floats(shape: impl Into<Vec<usize>>) -> Self {
        Self { kind: Kind::Floats, shape: shape.into(), default: None }
    }

    /// Creates a feature of `int64` with the given shape per record; `[]` means one number.
    pub fn ints(shape: impl Into<Vec<usize>>) -> Self {
        Self { kind: Kind::Ints, shape: shape.into(), default: None }
    }

    /// Creates a feature of byte strings with the given shape per record; `[]` means one string.
    pub fn bytes(shape: impl Into<Vec<usize>>) -> Self {
        Self { kind: Kind::Bytes, shape: shape.into(), default: None }
    }

    /// Sets the default for records without the feature: either as many values as the shape has, or one value for
    /// all. Without a default, such a record is an error.
    pub fn or(self, default: impl Into<Feature>) -> Self {
        Self { default: Some(default.into()), ..self }
    }
}

/// A feature with any number of values. It becomes a column of shape `[records, longest]`, in which shorter
/// records are padded.
///
/// All rows of a batch are as wide as its longest record. A record without the feature has no values.
#[doc(alias = "tf.io.VarLenFeature")]
#[doc(alias = "VarLenFeature")]
#[doc(alias = "tf.io.FixedLenSequenceFeature")]
#[doc(alias = "FixedLenSequenceFeature")]
#[derive(Clone, Debug)]
pub struct VarLen {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) padding: Feature,
    pub(super) lengths: Option<String>,
}

impl VarLen {
    /// Creates a feature of `float32`, padded with 0.
    pub fn floats() -> Self {
        Self::new(Kind::Floats)
    }

    /// Creates a feature of `int64`, padded with 0.
    pub fn ints() -> Self {
        Self::new(Kind::Ints)
    }

    /// Creates a feature of byte strings, padded with empty ones.
    pub fn bytes() -> Self {
        Self::new(Kind::Bytes)
    }

    fn new(kind: Kind) -> Self {
        Self { kind, shape: Vec::new(), padding: kind.zero(), lengths: None }
    }

    /// Groups the values into rows of the given shape. The column then has shape `[records, longest, shape...]`. A
    /// record whose number of values does not fill complete rows is an error.
    pub fn rows(self, shape: impl Into<Vec<usize>>) -> Self {
        Self { shape: shape.into(), ..self }
    }

    /// Sets the value with which shorter records are padded.
    pub fn pad(self, padding: impl Into<Feature>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// Adds a column named `name` with the number of values (or rows) of each record, as `int64` of shape
    /// `[records]`.
    pub fn lengths(self, name: impl Into<String>) -> Self {
        Self { lengths: Some(name.into()), ..self }
    }
}

impl From<FixedLen> for Wanted {
    fn from(fixed: FixedLen) -> Self {
        Wanted::Fixed(fixed)
    }
}

impl From<VarLen> for Wanted {
    fn from(var: VarLen) -> Self {
        Wanted::Var(var)
    }
}

impl Wanted {
    /// Returns the name of the column of lengths; `None` if there is none.
    pub(super) fn lengths(&self) -> Option<&str> {
        match self {
            Wanted::Var(var) => var.lengths.as_deref(),
            Wanted::Fixed(_) => None,
        }
    }

    fn identity(&self) -> String {
        match self {
            Wanted::Fixed(FixedLen { kind, shape, default }) => {
                let default = default.as_ref().map_or("none".into(), Feature::identity);
                format!("{} {shape:?} default {default}", kind.name())
            }
            Wanted::Var(VarLen { kind, shape, padding, lengths }) => {
                let padding = padding.identity();
                format!("any {} {shape:?} padding {padding} lengths {lengths:?}", kind.name())
            }
        }
    }

    fn check(&self) -> Result<()> {
        let (kind, shape) = match self {
            Wanted::Fixed(FixedLen { kind, shape, .. }) | Wanted::Var(VarLen { kind, shape, .. }) => {
                (kind, shape)
            }
        };
        let bad = |parameter, found, expected| {
            Err(Error::Parameter { operation: "Features::with", parameter, found, expected })
        };
        let sizes = shape.iter().try_fold(kind.bytes(), |size, axis| size.checked_mul((*axis).max(1)));
        if sizes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return bad("shape", format!("{shape:?}"), "the shape of a tensor that can be");
        }
        let size: usize = shape.iter().product();
        match self {
            Wanted::Fixed(FixedLen { default: Some(default), .. }) if default.kind() != *kind => {
                bad("the default", default.kind().name().into(), "of the feature's kind")
            }
            Wanted::Fixed(FixedLen { default: Some(default), .. })
                if default.len() != size && default.len() != 1 =>
            {
                bad(
                    "the default",
                    format!("{} values", default.len()),
                    "one value, or the number of values of the shape",
                )
            }
            Wanted::Var(VarLen { padding, .. }) if padding.kind() != *kind || padding.len() != 1 => {
                let found = format!("{} {}", padding.len(), padding.kind().name());
                bad("the padding", found, "one value of the feature's kind")
            }
            Wanted::Var(_) if size == 0 => {
                bad("the rows' shape", format!("{shape:?}"), "a shape with elements, which can be counted")
            }
            _ => Ok(()),
        }
    }
}

impl Features {
    /// Creates an empty set of features.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a feature named `name`: a [`FixedLen`] or a [`VarLen`].
    ///
    /// # Errors
    ///
    /// - [`Error::Parameter`]: a column with this name (or with the name for its lengths) already exists, the
    ///   shape is invalid, or a default or padding does not match the feature's kind or number of values.
    pub fn with(mut self, name: impl Into<String>, wanted: impl Into<Wanted>) -> Result<Self> {
        let (name, wanted) = (name.into(), wanted.into());
        wanted.check()?;
        let place = self.wanted.partition_point(|(other, _)| *other < name);
        self.wanted.insert(place, (name, wanted));
        let mut names = BTreeSet::new();
        for column in self.columns() {
            if !names.insert(column) {
                return Err(Error::Parameter {
                    operation: "Features::with",
                    parameter: "name",
                    found: format!("'{column}'"),
                    expected: "a name that no other column has",
                });
            }
        }
        Ok(self)
    }

    /// Sets the maximum number of bytes that a column may occupy; 256 MiB by default. All rows of a column are as wide
    /// as its longest list, so without a limit a small file could exhaust the memory.
    pub fn element_limit(self, bytes: u64) -> Self {
        Self { limit: self.limit.of(bytes), ..self }
    }

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between sets of features
    /// that result in different columns.
    pub(crate) fn identity(&self) -> String {
        let feature = |(name, wanted): &(String, Wanted)| format!("{name:?} {}", wanted.identity());
        self.wanted.iter().map(feature).collect::<Vec<_>>().join(", ")
    }

    /// Returns the limit in bytes that a column must not exceed.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.bytes()
    }

    /// Returns the name of the first feature that may have any number of values; `None` if there is none.
    pub(crate) fn first_variable(&self) -> Option<&str> {
        let variable = |(_, wanted): &&(String, Wanted)| matches!(wanted, Wanted::Var(_));
        self.wanted.iter().find(variable).map(|(name, _)| name.as_str())
    }

    /// Returns the spec of the columns of a batch of `rows` records. `rows` is `None` if the number of records may
    /// vary.
    pub(crate) fn spec(&self, rows: Option<usize>) -> ElementSpec {
        let mut columns = BTreeMap::new();
        for (name, wanted) in &self.wanted {
            let spec = match wanted {
                Wanted::Fixed(fixed) => {
                    TensorSpec::new(fixed.kind.dtype(), fixed.shape.clone()).batched(rows)
                }
                Wanted::Var(var) => {
                    TensorSpec::new(var.kind.dtype(), var.shape.clone()).batched(None).batched(rows)
                }
            };
            columns.insert(name.clone(), Tree::Leaf(spec));
            let lengths = wanted
                .lengths()
                .map(|name| (name.to_string(), Tree::Leaf(TensorSpec::scalar(DType::I64).batched(rows))));
            columns.extend(lengths);
        }
        Tree::Dict(columns)
    }

    /// Returns the names of all columns, including columns of lengths.
    fn columns(&self) -> impl Iterator<Item = &str> {
        self.wanted.iter().flat_map(|(name, wanted)| std::iter::once(name.as_str()).chain(wanted.lengths()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wanted: impl Into<Wanted>) -> String {
        Features::new().with("a", wanted).unwrap_err().to_string()
    }

    #[test]
    fn impossible_features_are_refused_when_they_are_requested() {
        assert!(refused(FixedLen::floats([2]).or(1)).contains("the default is ints"));
        assert!(refused(FixedLen::ints([3]).or([1, 2])).contains("the default is 2 values"));
        for shape in [[usize::MAX, 2, 1], [usize::MAX, 2, 0], [0, usize::MAX, 2], [usize::MAX / 2, 1, 1]] {
            assert!(refused(FixedLen::ints(shape)).contains("shape"));
            assert!(refused(FixedLen::floats(shape).or(1.)).contains("shape"));
            assert!(refused(VarLen::bytes().rows(shape)).contains("shape"));
        }
        assert!(refused(VarLen::ints().pad([1, 2])).contains("the padding is 2 ints"));
        assert!(refused(VarLen::bytes().pad(0)).contains("the padding is 1 ints"));
        assert!(refused(VarLen::ints().rows([2, 0])).contains("the rows' shape is [2, 0]"));
    }

    #[test]
    fn names_of_columns_are_taken_once() {
        let features = Features::new().with("a", VarLen::ints().lengths("n")).unwrap();
        let again = |name: &str| features.clone().with(name, FixedLen::ints([])).map(drop);
        assert!(again("a").unwrap_err().to_string().contains("'a'"));
        assert!(again("n").unwrap_err().to_string().contains("'n'"));
        assert!(again("b").is_ok());
        assert!(refused(VarLen::ints().lengths("a")).contains("'a'"));
    }
}
