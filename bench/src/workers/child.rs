//! The process of one worker.

use super::place::{Order, Work};
use super::{sum, train};
use crate::error::invalid;
use crate::figure::Effort;
use crate::output;
use crate::work::{Mlp, Model, Recommender, Zipf};
use distribute::Result;

/// Does the work of the order `name`. Worker 0 prints its measurement as a line.
pub fn run(name: &str) -> Result<()> {
    let Order { place, work } = name.parse()?;
    let sample = match work {
        Work::Sum { links, bytes, seconds } => sum::micros(&place, links, bytes, Effort { seconds })?.into(),
        Work::Exchange { bytes, seconds } => sum::exchange_micros(&place, bytes, Effort { seconds })?.into(),
        Work::Train { model, communication, saving, seconds } => {
            let trained = match model.as_str() {
                Mlp::NAME => train::sample::<Mlp>,
                Recommender::NAME => train::sample::<Recommender>,
                Zipf::NAME => train::sample::<Zipf>,
                _ => return Err(invalid(format!("--child knows no model {model:?}"))),
            };
            trained(&place, communication, saving, Effort { seconds })?
        }
    };
    if place.world.is_chief() { output::line(sample.line()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_models_are_refused_by_name() {
        let error = run("workers/0/a:1/train/moon/auto/none/1").unwrap_err();
        assert!(error.to_string().contains("moon"), "{error}");
    }
}
