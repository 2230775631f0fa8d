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
    /// This number of steps between two exchanges of weights, which are then averaged.
    LocalSteps(u32),
    /// Tables whose rows are partitioned over the workers.
    Tables,
    /// The same, with a cache of rows that may lack this number of steps.
    CachedTables(u64),
}

impl Saving {
    /// Sends everything.
    pub const NONE: Self = Self::Compression(Compression::None);

    /// Sets the option of the strategy.
    pub fn apply(self, builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
        match self {
            Self::Compression(compression) => builder.compression(compression),
            Self::LocalSteps(steps) => {
                builder.local_steps(LocalSteps { steps: steps.into(), outer: Outer::Average })
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
            Self::LocalSteps(steps) => write!(f, "local-{steps}"),
            Self::Tables => f.write_str("tables"),
            Self::CachedTables(staleness) => write!(f, "tables-{staleness}"),
        }
    }
}

/// Parses the names that [`Display`](fmt::Display) prints.
impl FromStr for Saving {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let number = |prefix| name.strip_prefix(prefix).and_then(|number: &str| number.parse::<u32>().ok());
        match (name, number("local-"), number("tables-")) {
            ("tables", ..) => Ok(Self::Tables),
            (_, Some(steps), _) => Ok(Self::LocalSteps(steps)),
            (_, _, Some(staleness)) => Ok(Self::CachedTables(staleness.into())),
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
            Saving::LocalSteps(10),
            Saving::Tables,
            Saving::CachedTables(4),
        ];
        for saving in all {
            assert_eq!(saving.to_string().parse(), Ok(saving));
        }
        assert!("tables-x".parse::<Saving>().unwrap_err().contains("tables-x"));
    }
}
