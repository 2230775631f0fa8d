//! An image of a table, from which another process can continue.

use super::spec::AnyTable;
use crate::{
    ClosureChanges, DynamicOptions, DynamicState, DynamicTable, Initializer, Result, Table, TableState,
    WaitingCounts,
};
use distribute_optim::RuleSpec;
use distribute_tensor::DType;

/// An image of a table: everything that a server saves to restore it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableImage {
    /// The name of the table.
    pub name: String,
    /// A hash that identifies the specification.
    pub fingerprint: u64,
    /// A description of the specification.
    pub described: String,
    /// The rule that applies gradients; `None` if the table has none.
    pub rule: Option<RuleSpec>,
    /// The contents of the table.
    pub contents: ImageContents,
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
        /// The admission and eviction settings.
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
        let rule = rule.and_then(|rule| rule.spec());
        Ok(Self { name: name.to_owned(), fingerprint, described, rule, contents, steps, closures })
    }

    pub(super) fn create(&self) -> Result<AnyTable> {
        match &self.contents {
            ImageContents::Dense(state) => {
                let table = Table::new(self.name.as_str(), state.values.clone())?;
                if let Some(rule) = &self.rule {
                    table.set_rule(rule.rule())?;
                }
                table.restore(&state.values, &state.slots)?;
                table.steps.set_last(self.steps);
                Ok(AnyTable::Dense(table))
            }
            ImageContents::Dynamic { row_shape, dtype, initializer, options, parts } => {
                let name = self.name.as_str();
                let table = DynamicTable::new(name, row_shape, *dtype, *initializer, *options)?;
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
