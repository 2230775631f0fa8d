//! An image of a table, from which another process can continue.

use super::spec::AnyTable;
use crate::{
    ClosureChanges, DynamicOptions, DynamicState, DynamicTable, Halves, Initializer, Result, RowPartition,
    Table, TableState, WaitingCounts,
};
use distribute_optim::RuleSpec;
use distribute_tensor::DType;

/// An image of a table: everything that a server saves to restore it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableImage {
    /// The name of the table.
    pub name: String,
    /// The hash of the table's specification.
    pub fingerprint: u64,
    /// The description of the table's specification, for errors.
    pub described: String,
    /// The rule that applies gradients; `None` if the table has none.
    pub rule: Option<RuleSpec>,
    /// The contents of the table.
    pub contents: ImageContents,
    /// The storage of the values in bf16; `None` if they are stored in their dtype. For a dynamic table, the partition
    /// is that of the whole table.
    pub halves: Option<Halves>,
    /// The last step that was [counted](crate::Push::counted).
    pub steps: u64,
    /// The changes that closures have made.
    pub closures: ClosureChanges,
}

/// The contents of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageContents {
    /// The values and slots of a dense table.
    Dense(TableState),
    /// The rows of a dynamic table.
    Dynamic {
        /// The shape of a row.
        row_shape: Vec<usize>,
        /// The dtype of the table.
        dtype: DType,
        /// The initial values of new rows.
        initializer: Initializer,
        /// The settings for creating and evicting rows.
        options: DynamicOptions,
        /// The rows of each part, and the counts of ids without a row.
        parts: Vec<(DynamicState, WaitingCounts)>,
    },
}

impl TableImage {
    pub(super) fn of(
        table: &AnyTable,
        (fingerprint, described): (u64, String),
        closures: ClosureChanges,
    ) -> Result<Self> {
        let (name, rule, contents, steps) = match table {
            AnyTable::Dense(table) => {
                (table.name(), table.rule(), ImageContents::Dense(table.state()?), table.steps.last())
            }
            AnyTable::Dynamic(table) => {
                let part = |part| Ok((table.state(part)?, table.waiting_counts(part)));
                let contents = ImageContents::Dynamic {
                    row_shape: table.row_dims().to_vec(),
                    dtype: table.dtype(),
                    initializer: table.initializer(),
                    options: table.options(),
                    parts: (0..table.parts()).map(part).collect::<Result<_>>()?,
                };
                (table.name(), table.rule(), contents, table.steps.last())
            }
        };
        let halves = match table {
            AnyTable::Dense(table) => table.halves(),
            AnyTable::Dynamic(table) => table.rounding().map(|rounding| Halves {
                rounding,
                partition: RowPartition::div(1, 1),
                shard: 0,
            }),
        };
        let rule = rule.and_then(|rule| rule.spec());
        Ok(Self { name: name.to_owned(), fingerprint, described, rule, contents, halves, steps, closures })
    }

    pub(super) fn create(&self) -> Result<AnyTable> {
        match &self.contents {
            ImageContents::Dense(state) => {
                let table = Table::stored(self.name.clone(), state.values.clone(), self.halves)?;
                if let Some(rule) = &self.rule {
                    table.set_rule(rule.rule())?;
                }
                table.restore(&state.values, &state.slots)?;
                table.steps.set_last(self.steps);
                Ok(AnyTable::Dense(table))
            }
            ImageContents::Dynamic { row_shape, dtype, initializer, options, parts } => {
                let rounding = self.halves.map(|halves| halves.rounding);
                let rows = (row_shape.as_slice(), *dtype);
                let table = DynamicTable::stored(self.name.clone(), rows, *initializer, *options, rounding)?;
                if let Some(rule) = &self.rule {
                    table.set_rule(rule.rule())?;
                }
                for (part, (state, waiting)) in parts.iter().enumerate() {
                    table.restore(state)?;
                    table.restore_waiting(part, waiting);
                }
                table.steps.set_last(self.steps);
                Ok(AnyTable::Dynamic(table))
            }
        }
    }
}
