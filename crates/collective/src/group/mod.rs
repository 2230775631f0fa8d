//! The workers of one world: processes that send each other bytes.
//!
//! | module | what it is |
//! |---|---|
//! | [`inbox`] | [`Inbox`]: received frames, by session |
//! | [`local`] | groups whose workers are threads of this process |
//! | [`frame`] | [`Frame`]: the messages between workers |
//! | `workers` | [`Group`]: the workers, as one of them sees them |
//! | `renewal` | links that are made again when the workers meet again |
//! | `summing` | links with a library that sums next to them |
//! | [`session`] | [`Session`]: the traffic of one run |
//! | `recorder` | what this worker did last |
//! | [`protocol`] | [`Protocol`]: what a worker does in a session, as a pure state machine |
//! | [`round`] | one round of messages, as a pure state machine |
//! | [`group_call`] | [`GroupCall`]: a call that the replicas of all workers make together |
//! | [`buffer`] | [`Buffers`]: memory that is filled, sent from where it lies, and serves again |
//! | [`early`] | [`EarlySend`]: vectors that are sent before the call in which they are used |
//! | `vectors` | exchanges and sums vectors of numbers in it, whose lengths all know |
//! | [`order`] | [`SumOptions`]: in which order, by which algorithm, and as what numbers are sent |
//! | `exact`, `fast`, `native` | sums by owners of ranges; by a schedule; by a library such as MPI |
//! | `schedule` | who sends which elements to whom, as functions of sizes |
//! | `wire`, `pieces` | numbers as halves; a vector in pieces |
//! | `reduce`, `raw` | reduces and gathers leaves in it, in the one order of sums; elements as bytes |
//!
//! A session consists of *rounds*. In each, every worker tells every other which call its replicas make, and may attach
//! data. The data is used only if all make the same call. If they differ, or one is gone or late, all workers judge the
//! same standings, so all get the same [`Blame`](distribute_cluster::Blame).
//!
//! Bytes are moved by a [`Transport`](distribute_net::Transport) of `distribute-net`.

pub mod buffer;
pub mod early;
mod exact;
mod fast;
pub mod frame;
pub mod group_call;
pub mod inbox;
pub mod local;
mod native;
pub mod order;
mod pieces;
pub mod protocol;
mod raw;
mod recorder;
mod reduce;
mod renewal;
pub mod round;
mod schedule;
pub mod session;
mod summing;
mod vectors;
mod wire;
mod workers;

pub use buffer::{Buffer, Buffers, numbers};
pub use early::EarlySend;
pub use frame::{Frame, Said, SessionId};
pub use group_call::GroupCall;
pub use inbox::Inbox;
pub use local::Links;
pub use order::{Algorithm, Order, SumOptions, Wire};
pub use protocol::Protocol;
pub use session::Session;
pub use wire::Real;
pub use workers::Group;
