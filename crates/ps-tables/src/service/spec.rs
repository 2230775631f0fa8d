//! The specification of a table, as data.

use crate::table::stored_bytes;
use crate::{DynamicOptions, DynamicTable, Error, Halves, Initializer, Result, RowPartition, Table};
use distribute_optim::{RuleSpec, StochasticRounding};
use distribute_tensor::{DType, HostTensor, codec, random::mix};

/// The maximum length of the name of a table, in bytes.
const MAX_NAME: usize = 4096;

/// The name of the table in which a server stores its [`Layout`](crate::Layout). It is an ordinary table, so logs,
/// snapshots and replicas contain it.
pub const LAYOUT_TABLE: &str = "~layout";

/// The specification of a table on a server. Creating a table again does nothing if the specification is the same, and
/// is an error otherwise.
///
/// ```
/// use distribute_optim::{Adam, RuleSpec};
/// use distribute_ps_tables::TableSpec;
/// use distribute_tensor::HostTensor;
///
/// let spec = TableSpec::values("bias", HostTensor::vector(vec![0f32; 10])).rule(RuleSpec::Adam(Adam::default()));
/// assert_eq!(spec.name, "bias");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The name, which identifies the table on its server: see [`shard_name`](crate::shard_name).
    pub name: String,
    /// The initial contents.
    pub contents: Contents,
    /// The rule that applies gradients. It can also be set later, by
    /// [`Request::SetRule`](crate::Request::SetRule).
    pub rule: Option<RuleSpec>,
    /// The rounding with which `float32` values are stored in bf16, in half of the memory; `None` if they are stored in
    /// their dtype. Slots, gradients and the values for clients remain `float32`.
    pub rounding: Option<StochasticRounding>,
}

/// The contents of a new table.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// The given values.
    Values(HostTensor),
    /// A shard of a variable. Its values are those of its rows in the complete variable: see [`Table::initialized`].
    Initialized {
        /// The shape of the complete variable.
        shape: Vec<usize>,
        /// The dtype of the variable.
        dtype: DType,
        /// The initial values.
        initializer: Initializer,
        /// The partition of the variable.
        partition: RowPartition,
        /// The index of this shard.
        shard: usize,
    },
    /// A dynamic table without rows: see [`DynamicTable::new`].
    Dynamic {
        /// The shape of a row.
        row_shape: Vec<usize>,
        /// The dtype of the table.
        dtype: DType,
        /// The initial values of new rows.
        initializer: Initializer,
        /// The settings for creating and evicting rows.
        options: DynamicOptions,
    },
}

/// A dense or dynamic table.
#[derive(Debug)]
pub(super) enum AnyTable {
    Dense(Table),
    Dynamic(DynamicTable),
}

impl Contents {
    /// Returns the shape of a row, which is empty for a scalar.
    pub(crate) fn row_shape(&self) -> &[usize] {
        match self {
            Contents::Values(values) => values.dims().get(1..).unwrap_or_default(),
            Contents::Initialized { shape, .. } => shape.get(1..).unwrap_or_default(),
            Contents::Dynamic { row_shape, .. } => row_shape,
        }
    }
}

impl TableSpec {
    /// Creates the specification of a table with the given initial values.
    pub fn values(name: impl Into<String>, values: HostTensor) -> Self {
        Self { name: name.into(), contents: Contents::Values(values), rule: None, rounding: None }
    }

    /// Sets the rule that applies gradients.
    pub fn rule(self, rule: RuleSpec) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Stores `float32` values in bf16, rounded by `rounding`. The random bits depend on the index of the row in the
    /// variable. [Given values](Contents::Values) are treated as a complete variable, whose rows are numbered from 0.
    pub fn rounding(self, rounding: StochasticRounding) -> Self {
        Self { rounding: Some(rounding), ..self }
    }

    /// Creates the table, after checking the length of its name.
    pub(super) fn create(&self) -> Result<AnyTable> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(Error::TableName { length: self.name.len(), limit: MAX_NAME });
        }
        let (name, rounding) = (self.name.clone(), self.rounding);
        let table = match &self.contents {
            Contents::Values(values) => {
                // It is unknown which rows of a variable these are.
                let partition = RowPartition::div(values.dims().first().copied().unwrap_or(1), 1);
                let halves = rounding.map(|rounding| Halves { rounding, partition, shard: 0 });
                AnyTable::Dense(Table::stored(name, values.clone(), halves)?)
            }
            Contents::Initialized { shape, dtype, initializer, partition, shard } => {
                let (contents, place) = ((shape.as_slice(), *dtype), (*partition, *shard));
                AnyTable::Dense(Table::initialized_in(name, contents, initializer, place, rounding)?)
            }
            Contents::Dynamic { row_shape, dtype, initializer, options } => {
                let rows = (row_shape.as_slice(), *dtype);
                AnyTable::Dynamic(DynamicTable::stored(name, rows, *initializer, *options, rounding)?)
            }
        };
        if let Some(rule) = &self.rule {
            table.set_rule(rule)?;
        }
        Ok(table)
    }

    /// Returns a hash of the specification without the name. It includes given values.
    pub(super) fn fingerprint(&self) -> u64 {
        let text = match &self.contents {
            Contents::Values(values) => values.describe(),
            other => format!("{other:?}"),
        };
        let mut hash = hashed(0, format!("{text} {:?}", self.rule).as_bytes());
        if let Some(rounding) = &self.rounding {
            hash = hashed(hash, format!("{rounding:?}").as_bytes());
        }
        if let Contents::Values(values) = &self.contents {
            hash =
                codec::chunks(values.buffer(), 0..values.len()).fold(hash, |hash, part| hashed(hash, &part));
        }
        hash
    }

    /// Describes the table for errors: its dtype, shape, rounding and rule.
    pub(super) fn describe(&self) -> String {
        let table = match &self.contents {
            Contents::Values(values) => values.describe(),
            Contents::Initialized { shape, dtype, partition, shard, .. } => {
                format!("shard {shard} of {} of {dtype}{shape:?}", partition.shards())
            }
            Contents::Dynamic { row_shape, dtype, .. } => format!("dynamic rows of {dtype}{row_shape:?}"),
        };
        let rule = self.rule.as_ref().map_or("no rule".to_owned(), |rule| rule.rule().name().to_owned());
        let halves = self
            .rounding
            .map(|rounding| format!(" in bf16 with seed {}", rounding.seed()))
            .unwrap_or_default();
        format!("{table}{halves} with {rule}")
    }
}

impl AnyTable {
    pub(super) fn set_rule(&self, rule: &RuleSpec) -> Result<()> {
        match self {
            Self::Dense(table) => table.set_rule(rule.rule()),
            Self::Dynamic(table) => table.set_rule(rule.rule()),
        }
    }

    /// Returns the size in bytes of a row's values as they are stored, without the contents of strings.
    pub(super) fn stored_row_bytes(&self) -> usize {
        let (row, dtype, in_halves) = match self {
            Self::Dense(table) => {
                (table.dims().get(1..).unwrap_or_default(), table.dtype(), table.halves().is_some())
            }
            Self::Dynamic(table) => (table.row_dims(), table.dtype(), table.rounding().is_some()),
        };
        row.iter().product::<usize>().saturating_mul(stored_bytes(dtype, in_halves))
    }
}

/// Hashes bytes, eight at a time, starting from `hash`.
fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| mix(hash ^ u64::from_le_bytes(*word)).wrapping_add(1));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash ^ u64::from_le_bytes(last)).wrapping_add(bytes.len() as u64)
}
