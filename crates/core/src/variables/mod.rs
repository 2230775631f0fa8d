//! Variables: values that replicas share or have copies of, and those of one model.
//!
//! | file | what it is |
//! |---|---|
//! | `kinds` | [`VariableSynchronization`], [`VariableAggregation`] |
//! | `access` | what may be done where, and how: the documents' tables as one pure function |
//! | `placement` | which storages a new one gets: one pure function |
//! | `storage` | where one copy is: candle's memory, the host's, or parameter servers |
//! | `in_candle` | writing into candle's memory |
//! | `device_copies` | copies for replicas whose devices have memory of their own |
//! | `variable`, `create` | [`Variable`]: its properties; making one |
//! | `place` | where it is being used, and which copy is the one of that place |
//! | `read`, `write` | its operations, in whatever context |
//! | `shards`, `lookup` | its parts; its rows by their ids, one by one and combined; slices of it |
//! | `rows`, `cache` | those on parameter servers: which are looked up by row alone; a scope in which each is read once |
//! | `dynamic` | those whose rows are ids |
//! | `checksum` | by which workers compare theirs |
//! | `state` | it as a part of a checkpoint |
//! | `model` | [`Variables`]: those of one model, made by `replicate` |

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
