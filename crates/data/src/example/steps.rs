//! [`SequenceFeatures`]: the features and lists to parse from sequence examples, and the columns that they
//! become.

use super::feature::{Feature, Kind};
use super::features::{Features, Wanted};
use crate::file::ElementLimit;
use crate::{ElementSpec, Error, Result, TensorSpec};
use distribute_tensor::{DType, Tree};
use std::collections::BTreeMap;

/// A list of features, one for each step of a sequence, that becomes a column. If steps have a fixed shape, the column
/// has shape `[records, longest, shape...]`. If steps may have any number of values, it has shape `[records, longest,
/// most]`. Here `longest` is the largest number of steps of a record, and `most` the largest number of values of a
/// step. Shorter lists and steps are padded.
///
/// If steps have a fixed shape, a record without the list is an error, unless [`or_empty`](Self::or_empty) is set. If
/// steps may have any number of values, a missing list is empty.
///
/// ```
/// use distribute_data::example::{FixedLen, SequenceExample, SequenceFeatures, Steps};
///
/// let records = [
///     SequenceExample::new().with_context("label", 1).with_list("frames", [[0.5, 1.0]]).encode(),
///     SequenceExample::new().with_context("label", 2).with_list("frames", [[1.5, 2.0], [2.5, 3.0]]).encode(),
/// ];
/// let features = SequenceFeatures::new()
///     .context("label", FixedLen::ints([]))?
///     .list("frames", Steps::floats([2]).lengths("frames_len"))?;
///
/// let (context, lists) = features.parse(records.iter().map(Vec::as_slice))?;
/// assert_eq!(context["label"].as_slice(), Some(&[1i64, 2][..]));
/// assert_eq!(lists["frames"].dims(), [2, 2, 2]);
/// assert_eq!(lists["frames"].as_slice(), Some(&[0.5f32, 1.0, 0.0, 0.0, 1.5, 2.0, 2.5, 3.0][..]));
/// assert_eq!(lists["frames_len"].as_slice(), Some(&[1i64, 2][..]));
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.io.FixedLenSequenceFeature")]
#[doc(alias = "tf.io.RaggedFeature")]
#[derive(Clone, Debug)]
pub struct Steps {
    pub(super) kind: Kind,
    /// The shape of each step; `None` if a step may have any number of values.
    pub(super) shape: Option<Vec<usize>>,
    pub(super) padding: Feature,
    pub(super) lengths: Option<String>,
    pub(super) step_lengths: Option<String>,
    pub(super) optional: bool,
}

impl Steps {
    /// Creates a list whose steps are `float32` of the given shape; `[]` means one number per step.
    pub fn floats(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(Kind::Floats, Some(shape.into()))
    }

    /// Creates a list whose steps are `int64` of the given shape.
    pub fn ints(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(Kind::Ints, Some(shape.into()))
    }

    /// Creates a list whose steps are byte strings of the given shape.
    pub fn bytes(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(Kind::Bytes, Some(shape.into()))
    }

    /// Creates a list whose steps have any number of `float32` values.
    pub fn ragged_floats() -> Self {
        Self::new(Kind::Floats, None)
    }

    /// Creates a list whose steps have any number of `int64` values.
    pub fn ragged_ints() -> Self {
        Self::new(Kind::Ints, None)
    }

    /// Creates a list whose steps have any number of byte strings.
    pub fn ragged_bytes() -> Self {
        Self::new(Kind::Bytes, None)
    }

    fn new(kind: Kind, shape: Option<Vec<usize>>) -> Self {
        let optional = shape.is_none();
        Self { kind, shape, padding: kind.zero(), lengths: None, step_lengths: None, optional }
    }

    /// Sets the value with which shorter lists and steps are padded. The default is zero or an empty string.
    pub fn pad(self, padding: impl Into<Feature>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// Adds a column named `name` with the number of steps of each record, as `int64` of shape `[records]`.
    pub fn lengths(self, name: impl Into<String>) -> Self {
        Self { lengths: Some(name.into()), ..self }
    }

    /// Adds a column named `name` with the number of values of each step, as `int64` of shape `[records,
    /// longest]`.
    pub fn step_lengths(self, name: impl Into<String>) -> Self {
        Self { step_lengths: Some(name.into()), ..self }
    }

    /// Treats a missing list as an empty list, rather than as an error.
    #[doc(alias = "allow_missing")]
    pub fn or_empty(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Returns the number of values of a step; `None` if it is not fixed.
    pub(super) fn size(&self) -> Option<usize> {
        self.shape.as_ref().map(|shape| shape.iter().product())
    }

    fn identity(&self) -> String {
        let Steps { kind, shape, padding, lengths, step_lengths, optional } = self;
        let (kind, padding) = (kind.name(), padding.identity());
        format!("{kind} {shape:?} padding {padding} lengths {lengths:?} {step_lengths:?} optional {optional}")
    }

    fn check(&self) -> Result<()> {
        let bad = |parameter, found, expected| {
            Err(Error::Parameter { operation: "SequenceFeatures::list", parameter, found, expected })
        };
        let shape = self.shape.as_deref().unwrap_or_default();
        let bytes = shape.iter().try_fold(self.kind.bytes(), |size, axis| size.checked_mul((*axis).max(1)));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return bad("shape", format!("{shape:?}"), "the shape of a tensor that can be");
        }
        if self.padding.kind() != self.kind || self.padding.len() != 1 {
            let found = format!("{} {}", self.padding.len(), self.padding.kind().name());
            return bad("the padding", found, "one value of the list's kind");
        }
        Ok(())
    }
}

/// The features of the context and the lists to parse from sequence examples, by name. Other features and lists of a
/// record are skipped.
#[derive(Clone, Debug)]
pub struct SequenceFeatures {
    pub(super) context: Features,
    pub(super) lists: BTreeMap<String, Steps>,
    pub(super) limit: ElementLimit,
}

impl Default for SequenceFeatures {
    fn default() -> Self {
        let limit = ElementLimit::new("SequenceFeatures::element_limit");
        Self { context: Features::new(), lists: BTreeMap::new(), limit }
    }
}

impl SequenceFeatures {
    /// Creates an empty set of features and lists.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a context feature named `name`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Features::with`].
    #[doc(alias = "context_features")]
    pub fn context(self, name: impl Into<String>, wanted: impl Into<Wanted>) -> Result<Self> {
        Ok(Self { context: self.context.with(name, wanted)?, ..self })
    }

    /// Adds a list named `name`.
    ///
    /// # Errors
    ///
    /// - [`Error::Parameter`]: a column with this name (or with the name for its lengths) already exists, the
    ///   shape is invalid, or the padding is not a single value of the list's kind.
    #[doc(alias = "sequence_features")]
    pub fn list(mut self, name: impl Into<String>, steps: Steps) -> Result<Self> {
        steps.check()?;
        let name = name.into();
        let taken = |name: &str| {
            let found = format!("'{name}'");
            let (operation, parameter) = ("SequenceFeatures::list", "name");
            Error::Parameter { operation, parameter, found, expected: "a name that no other column has" }
        };
        if self.lists.contains_key(&name) {
            return Err(taken(&name));
        }
        self.lists.insert(name, steps);
        let mut names: Vec<&String> = self.lists.keys().collect();
        names.extend(self.lists.values().flat_map(|steps| [&steps.lengths, &steps.step_lengths]).flatten());
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(taken(pair[0])),
            None => Ok(self),
        }
    }

    /// Sets the maximum number of bytes that a column may occupy; 256 MiB by default.
    pub fn element_limit(self, bytes: u64) -> Self {
        Self { context: self.context.element_limit(bytes), limit: self.limit.of(bytes), ..self }
    }

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between settings that
    /// result in different columns.
    pub(crate) fn identity(&self) -> String {
        let list = |(name, steps): (&String, &Steps)| format!(", list {name:?} {}", steps.identity());
        self.context.identity() + &self.lists.iter().map(list).collect::<String>()
    }

    /// Returns the spec of the columns of a batch of `rows` records. `rows` is `None` if the number of records may
    /// vary.
    pub(crate) fn spec(&self, rows: Option<usize>) -> ElementSpec {
        let mut lists = BTreeMap::new();
        let lengths = || TensorSpec::scalar(DType::I64);
        for (name, steps) in &self.lists {
            let step = match &steps.shape {
                Some(shape) => TensorSpec::new(steps.kind.dtype(), shape.clone()),
                None => TensorSpec::scalar(steps.kind.dtype()).batched(None),
            };
            let all = steps.lengths.iter().map(|name| (name, lengths().batched(rows)));
            let each = steps.step_lengths.iter().map(|name| (name, lengths().batched(None).batched(rows)));
            let columns = std::iter::once((name, step.batched(None).batched(rows))).chain(all).chain(each);
            lists.extend(columns.map(|(name, spec)| (name.clone(), Tree::Leaf(spec))));
        }
        Tree::Tuple(vec![self.context.spec(rows), Tree::Dict(lists)])
    }
}
