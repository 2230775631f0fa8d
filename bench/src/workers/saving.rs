//! The options of a strategy with which training sends fewer bytes.

use distribute::parameter_server::RowCacheOptions;
use distribute::strategy::{
    Compression, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer, TableHosts, TableOptions,
};
use std::fmt;
use std::str::FromStr;

/// The option with which training sends fewer bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// Gradients in a compressed form. `Compression::None` sends them as they are.
    Compression(Compression),
    /// This number of steps between two exchanges of weights, which are then averaged: of what has changed, in this
    /// form.
    LocalSteps(u32, Compression),
    /// Tables whose rows are partitioned over the workers.
    Tables,
    /// The same, with a cache of rows that may lack this number of steps.
    CachedTables(u64),
}

impl Saving {
    /// Sends everything.
    pub const NONE: Self = Self::Compression(Compression::None);

    /// Returns the number of steps after which the same bytes are sent again.
    pub fn period(self) -> usize {
        match self {
            Self::LocalSteps(steps, _) => steps as usize,
            _ => 1,
        }
    }

    /// Sets the option of the strategy.
    pub fn apply(self, builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
        match self {
            Self::Compression(compression) => builder.compression(compression),
            Self::LocalSteps(steps, compression) => {
                let local = LocalSteps { steps: steps.into(), outer: Outer::Average };
                builder.local_steps(local).compression(compression)
            }
            Self::Tables => builder.tables(TableHosts::Workers),
            Self::CachedTables(staleness) => {
                let row_cache = Some(RowCacheOptions { bytes: 64 << 20, staleness });
                builder.tables(TableOptions { row_cache, ..TableHosts::Workers.into() })
            }
        }
    }
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compression(compression) => write!(f, "{compression}"),
            Self::LocalSteps(steps, Compression::None) => write!(f, "local-{steps}"),
            Self::LocalSteps(steps, compression) => write!(f, "local-{steps}-{compression}"),
            Self::Tables => f.write_str("tables"),
            Self::CachedTables(staleness) => write!(f, "tables-{staleness}"),
        }
    }
}

/// Parses the names that [`Display`](fmt::Display) prints.
impl FromStr for Saving {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        if let Some(local) = name.strip_prefix("local-") {
            let (steps, compression) = local.split_once('-').unwrap_or((local, "none"));
            let steps = number(steps).ok_or_else(|| format!("{name:?} has no number of steps"))?;
            return Ok(Self::LocalSteps(steps, compression.parse()?));
        }
        match (name, name.strip_prefix("tables-").and_then(number)) {
            ("tables", _) => Ok(Self::Tables),
            (_, Some(staleness)) => Ok(Self::CachedTables(staleness.into())),
            _ => name.parse().map(Self::Compression),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_they_are_printed() {
        let all = [
            Saving::NONE,
            Saving::Compression(Compression::LowRank { rank: 4 }),
            Saving::LocalSteps(10, Compression::None),
            Saving::LocalSteps(10, Compression::TopK),
            Saving::LocalSteps(3, Compression::LowRank { rank: 4 }),
            Saving::Tables,
            Saving::CachedTables(4),
        ];
        for saving in all {
            assert_eq!(saving.to_string().parse(), Ok(saving));
        }
        for wrong in ["tables-x", "local-x", "local-3-x"] {
            assert!(wrong.parse::<Saving>().is_err(), "{wrong}");
        }
    }
}
