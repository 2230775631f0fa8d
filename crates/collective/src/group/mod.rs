//! The workers of one world: processes that hand each other bytes.
//!
//! | module | what it is |
//! |---|---|
//! | [`transport`] | [`Transport`]: moves frames from one worker to another |
//! | [`memory`] | the transport whose workers are threads of this process |
//! | [`inbox`] | [`Inbox`]: what has come, by session, until somebody takes it |
//! | [`frame`] | [`Frame`]: what one worker tells another, as bytes |
//! | [`session`] | [`Group`] and [`Session`]: the traffic of one run |
//! | [`round`] | what the workers of a round have said, and what follows: a pure state machine |
//! | [`reduce`] | leaves of all replicas of all workers, reduced and gathered |
//!
//! A session goes in *rounds*. In each, every worker tells every other what its replicas do, and may send data with
//! it. Only where all do the same is the data given out; where they differ, or one is gone or late, all workers judge
//! the same standings, so that all get the same [`Blame`](distribute_cluster::Blame).

pub mod frame;
pub mod inbox;
pub mod memory;
pub mod reduce;
pub mod round;
pub mod session;
pub mod transport;

pub use frame::{Frame, Said, SessionId};
pub use inbox::Inbox;
pub use reduce::Calling;
pub use session::{Group, Session};
pub use transport::Transport;
