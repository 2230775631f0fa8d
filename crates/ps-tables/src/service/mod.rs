//! The requests and responses of a parameter server, and their execution without a socket.
//!
//! To add a request, add a variant to [`Request`] and to [`Response`], its cost, its refusals, and a match arm in
//! `entry`. In `distribute-ps-server`, add its heads to the codec, and a case to the test that compares the results
//! with those of tables in memory.
//!
//! | module | contents |
//! |---|---|
//! | `request`, `response`, `refusal` | requests and responses, as data |
//! | `spec`, `cost` | the specification of a table; the memory that a request takes |
//! | `tables`, `creations` | [`Tables`]: all tables of a server; the turns for creating them |
//! | `entry` | one table, and the execution of its requests |
//! | `exactly_once` | changes that closures make, each applied at most once |
//! | `image` | an image of a table, from which another process can continue |
//! | `usage`, `budget` | the usage of a server, and the memory limit of its tables |
//! | `channel`, `local` | [`Channel`]: a client's connection to a server; a server inside this process |

mod budget;
mod channel;
mod cost;
mod creations;
mod entry;
mod exactly_once;
mod image;
mod local;
mod refusal;
mod request;
mod response;
mod spec;
mod tables;
#[cfg(test)]
mod tests;
mod usage;

pub use channel::{Channel, ChannelError, Started, WaitForResponse};
pub use image::{ImageContents, TableImage};
pub use local::LocalChannel;
pub use refusal::{Refusal, RefusalKind};
pub use request::{Request, State};
pub use response::{ChangedRows, LogPosition, Response, TableInfo, TableKind, Version, VersionedValue};
pub use spec::{Contents, LAYOUT_TABLE, TableSpec};
pub use tables::Tables;
pub use usage::{Copies, RowReads, Usage};
