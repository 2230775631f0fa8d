//! Variables: values that replicas share or have copies of, and those of one model.
//!
//! | file | what it is |
//! |---|---|
//! | `kinds` | [`VariableSynchronization`], [`VariableAggregation`] |
//! | `access` | what may be done where, and how: the documents' tables as one pure function |
//! | `placement` | which storages a new one gets: one pure function |
//! | `storage` | where one copy is: candle's memory, or the host's |
//! | `variable`, `create` | [`Variable`]: its properties; making one |
//! | `place` | where it is being used, and which copy is the one of that place |
//! | `read`, `write` | its operations, in whatever context |
//! | `checksum` | by which workers compare theirs |
//! | `state` | it as a part of a checkpoint |
//! | `model` | [`Variables`]: those of one model, made by `replicate` |

mod access;
mod checksum;
mod create;
mod kinds;
mod model;
mod place;
mod placement;
mod read;
mod state;
mod storage;
mod variable;
mod write;

pub use create::NewVariable;
pub use kinds::{VariableAggregation, VariableSynchronization};
pub use model::Variables;
pub use variable::Variable;
pub(crate) use variable::WeakVariable;

/// An error of candle as one that says which variable it is about.
fn about(name: &str) -> impl FnOnce(crate::Error) -> crate::Error {
    move |error| match error {
        crate::Error::Candle(source) => {
            crate::Error::Candle(candle_core::Error::msg(format_args!("variable {name}: {source}")))
        }
        other => other,
    }
}
