//! The protocol of a parameter server, and its execution without a socket.

mod budget;
mod channel;
mod cost;
mod entry;
mod image;
mod local;
mod once;
mod refusal;
mod request;
mod response;
mod spec;
mod tables;
#[cfg(test)]
mod tests;
mod usage;

pub use channel::{Channel, ChannelError, Started, Waiting};
pub use image::{ImageContents, TableImage};
pub use local::LocalChannel;
pub use refusal::{Refusal, RefusalKind};
pub use request::{Request, State};
pub use response::{Response, TableInfo, TableKind, Version, VersionedValue};
pub use spec::{Contents, LAYOUT_TABLE, TableSpec};
pub use tables::Tables;
pub use usage::{Copies, Usage};
