//! How a table is made, as data.

use crate::{DynamicOptions, DynamicTable, Error, Initializer, Result, RowPartition, Table};
use distribute_optim::RuleSpec;
use distribute_tensor::{DType, HostTensor, codec, random::mix};

/// The longest name of a table, in bytes.
const LONGEST_NAME: usize = 4096;

/// The table in which a server keeps its [`Layout`](crate::Layout). It is a table as others, so that it is in logs, snapshots and on followers.
pub const LAYOUT_TABLE: &str = "~layout";

/// How a table of a server is made. To make it again by the same is nothing new; by another one it is refused.
///
/// ```
/// use distribute_optim::{Adam, RuleSpec};
/// use distribute_params::TableSpec;
/// use distribute_tensor::HostTensor;
///
/// let spec = TableSpec::values("bias", HostTensor::vector(vec![0f32; 10])).rule(RuleSpec::Adam(Adam::default()));
/// assert_eq!(spec.name, "bias");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The name, by which the server knows the table: see [`shard_name`](crate::shard_name).
    pub name: String,
    /// What is in it.
    pub contents: Contents,
    /// The rule by which gradients are applied; it can be set later, too, by
    /// [`Request::SetRule`](crate::Request::SetRule).
    pub rule: Option<RuleSpec>,
}

/// What a new table holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// These values.
    Values(HostTensor),
    /// A shard of a variable, with the values that the whole variable has there: see [`Table::drawn`].
    Drawn {
        /// The shape of the whole variable.
        shape: Vec<usize>,
        /// The dtype.
        dtype: DType,
        /// Draws the values.
        initializer: Initializer,
        /// How the variable is cut.
        partition: RowPartition,
        /// Which part this is.
        shard: usize,
    },
    /// Rows of ids of 64 bits, none yet: see [`DynamicTable::new`].
    Dynamic {
        /// The shape of a row.
        row_shape: Vec<usize>,
        /// The dtype.
        dtype: DType,
        /// Draws rows that are made.
        initializer: Initializer,
        /// Which ids get a row, and which lose theirs.
        options: DynamicOptions,
    },
}

/// A table of any kind.
#[derive(Debug)]
pub(super) enum AnyTable {
    Dense(Table),
    Dynamic(DynamicTable),
}

impl TableSpec {
    /// A table of these values.
    pub fn values(name: impl Into<String>, values: HostTensor) -> Self {
        Self { name: name.into(), contents: Contents::Values(values), rule: None }
    }

    /// The same table with a rule.
    pub fn rule(self, rule: RuleSpec) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Makes the table.
    pub(super) fn make(&self) -> Result<AnyTable> {
        if self.name.is_empty() || self.name.len() > LONGEST_NAME {
            return Err(Error::TableName { length: self.name.len(), limit: LONGEST_NAME });
        }
        let name = self.name.as_str();
        let table = match &self.contents {
            Contents::Values(values) => AnyTable::Dense(Table::new(name, values.clone())?),
            Contents::Drawn { shape, dtype, initializer, partition, shard } => {
                AnyTable::Dense(Table::drawn(name, shape, *dtype, initializer, (*partition, *shard))?)
            }
            Contents::Dynamic { row_shape, dtype, initializer, options } => {
                AnyTable::Dynamic(DynamicTable::new(name, row_shape, *dtype, *initializer, *options)?)
            }
        };
        if let Some(rule) = &self.rule {
            table.set_rule(rule)?;
        }
        Ok(table)
    }

    /// A number that is the same for the same specification, values included.
    pub(super) fn fingerprint(&self) -> u64 {
        let text = match &self.contents {
            Contents::Values(values) => values.describe(),
            other => format!("{other:?}"),
        };
        let mut hash = hashed(0, format!("{text} {:?}", self.rule).as_bytes());
        if let Contents::Values(values) = &self.contents {
            hash =
                codec::chunks(values.buffer(), 0..values.len()).fold(hash, |hash, part| hashed(hash, &part));
        }
        hash
    }

    /// In words: dtype, shape and rule.
    pub(super) fn describe(&self) -> String {
        let table = match &self.contents {
            Contents::Values(values) => values.describe(),
            Contents::Drawn { shape, dtype, partition, shard, .. } => {
                format!("shard {shard} of {} of {dtype}{shape:?}", partition.shards())
            }
            Contents::Dynamic { row_shape, dtype, .. } => format!("dynamic rows of {dtype}{row_shape:?}"),
        };
        let rule = self.rule.map_or("no rule".to_owned(), |rule| rule.rule().name().to_owned());
        format!("{table} with {rule}")
    }
}

impl AnyTable {
    pub(super) fn set_rule(&self, rule: &RuleSpec) -> Result<()> {
        match self {
            Self::Dense(table) => table.set_rule(rule.rule()),
            Self::Dynamic(table) => table.set_rule(rule.rule()),
        }
    }
}

/// Bytes, hashed eight at a time.
fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| mix(hash ^ u64::from_le_bytes(*word)).wrapping_add(1));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash ^ u64::from_le_bytes(last)).wrapping_add(bytes.len() as u64)
}
