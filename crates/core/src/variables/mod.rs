//! Variables: values that replicas share or have copies of, and the variables of a model.
//!
//! A variable of a model has one copy for all replicas that use the same memory, so a step copies no weights.
//! A variable that a program creates in a scope has one copy per device, as in TensorFlow. Both are
//! [`Variable`]s.
//!
//! | module | contents |
//! |---|---|
//! | `storage` | the memory of one copy: candle's, the host's, or parameter servers |
//! | `variable`, `create` | [`Variable`] and its properties; creating variables |
//! | `registry` | the variables of a strategy |
//! | `access_site` | the context of an access, and the copy that belongs to it |
//! | `read`, `write`, `reduced` | reading and writing in any context; variables as arguments of `reduce` |
//! | `shards`, `lookup` | shards, rows and slices of a variable; looking up and combining rows |
//! | `rows`, `cache` | on parameter servers: tables that are looked up by row; a scope that reads each variable once |
//! | `dynamic` | variables whose rows are ids |
//! | `apart` | the steps that this worker has made alone, and the variables that differ because of them |
//! | `checksum`, `drift` | checksums of variables; comparing them between workers in each step |
//! | `live` | candle variables whose values a checkpoint copies while the program continues |
//! | `state`, `error` | a variable as a component of a checkpoint; errors with the variable's name |
//! | `model` | [`Variables`]: the variables of a model, created by `replicate` |

mod access_site;
mod apart;
mod cache;
mod checksum;
mod create;
mod drift;
mod dynamic;
mod error;
mod live;
pub mod lookup;
mod model;
mod read;
mod reduced;
mod registry;
mod rows;
mod shards;
mod state;
mod storage;
pub mod variable;
mod write;

pub(crate) use cache::ReadCache;
pub use create::VariableBuilder;
pub use distribute_ps_client::internal::row_of_id;
pub(crate) use drift::Digest;
pub use model::UnchangedNorm;
pub use model::Variables;
pub use model::rebuild;
pub use rows::RowSource;
pub use rows::request_ids;
pub use rows::request_rows;
pub use shards::Shard;
pub use variable::Variable;
