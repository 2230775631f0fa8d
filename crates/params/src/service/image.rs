//! All there is of a table, so that another process can go on with it.

use super::spec::AnyTable;
use crate::{
    ClosureChanges, DynamicOptions, DynamicState, DynamicTable, Initializer, Result, Table, TableState,
    WaitingCounts,
};
use distribute_optim::RuleSpec;
use distribute_tensor::DType;

/// A table as it is: what a server saves to be the same again.
#[derive(Clone, Debug, PartialEq)]
pub struct TableImage {
    /// Its name.
    pub name: String,
    /// By which it is told whether it was made by the same specification.
    pub fingerprint: u64,
    /// The specification in words.
    pub described: String,
    /// The rule by which gradients are applied.
    pub rule: Option<RuleSpec>,
    /// What is in it.
    pub contents: ImageContents,
    /// The last of the steps that were [counted](crate::Push::counted).
    pub steps: u64,
    /// Which changes of closures were made.
    pub closures: ClosureChanges,
}

/// What is in a table.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageContents {
    /// Values and slots of a dense table.
    Dense(TableState),
    /// Rows of ids.
    Dynamic {
        /// The shape of a row.
        row_shape: Vec<usize>,
        /// The dtype.
        dtype: DType,
        /// Draws rows that are made.
        initializer: Initializer,
        /// Which ids get a row, and which lose theirs.
        options: DynamicOptions,
        /// The rows of each part, and how often ids without a row came.
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

    pub(super) fn make(&self) -> Result<AnyTable> {
        match &self.contents {
            ImageContents::Dense(state) => {
                let table = Table::new(self.name.as_str(), state.values.clone())?;
                if let Some(rule) = self.rule {
                    table.set_rule(rule.rule())?;
                }
                table.restore(&state.values, &state.slots)?;
                table.steps.set_last(self.steps);
                Ok(AnyTable::Dense(table))
            }
            ImageContents::Dynamic { row_shape, dtype, initializer, options, parts } => {
                let name = self.name.as_str();
                let table = DynamicTable::new(name, row_shape, *dtype, *initializer, *options)?;
                if let Some(rule) = self.rule {
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
