//! Variables: values that replicas share or have copies of, and the variables of one model.
//!
//! | file | what it is |
//! |---|---|
//! | `kinds` | [`VariableSynchronization`], [`VariableAggregation`] |
//! | `access` | the allowed operations, and the way to do them: the documents' tables as one pure function |
//! | `placement` | the storages of a new variable: one pure function |
//! | `storage` | the location of one copy: candle's memory, the host's, or parameter servers |
//! | `in_candle` | writing into candle's memory |
//! | `device_copies` | copies for replicas whose devices have separate memory |
//! | `variable`, `create` | [`Variable`]: its properties; its creation |
//! | `place` | the context of a use, and the copy that belongs to it |
//! | `read`, `write` | its operations, in any context |
//! | `shards`, `lookup` | its shards; its rows by their ids, one by one and combined; slices of it |
//! | `rows`, `cache` | on parameter servers: tables that are looked up by row; a scope that reads each variable once |
//! | `dynamic` | variables whose rows are ids |
//! | `checksum` | the checksum by which workers compare their variables |
//! | `state` | a variable as a component of a checkpoint |
//! | `model` | [`Variables`]: the variables of one model, created by `replicate` |

mod about;
mod access;
mod cache;
mod checksum;
mod create;
mod drift;
mod dynamic;
pub mod lookup;
mod model;
mod place;
mod placement;
mod read;
mod reduced;
mod registry;
mod rows;
mod shards;
mod state;
mod storage;
pub mod variable;
mod write;
pub use lookup::BagMode;

pub(crate) use cache::Cached;
pub use create::NewVariable;
pub use distribute_ps_client::internal::row_of_id;
pub(crate) use drift::{Digest, Mirrored};
pub use model::Evaluated;
pub use model::Variables;
pub use model::again;
pub use rows::RowSource;
pub use rows::for_ids;
pub use rows::for_rows;
pub use shards::Shard;
pub use variable::Variable;
