//! The workers of one world: processes that send bytes to each other.
//!
//! The workers make the calls of a step in a *session*, whose name and number are the same on all workers. A session
//! consists of *rounds*, each with its own deadline:
//!
//! 1. Every worker sends every other a digest of the call that its replicas make and, if the data is small, the data.
//! 2. If all digests are equal, the round returns the data. If a digest differs or is missing, every worker sends the
//!    *statuses* of its replicas. All workers decide from the same statuses, so all get the same
//!    [`Blame`](distribute_cluster::Blame).
//! 3. If a worker is lost or times out, workers may have different information. The first worker that made the call
//!    before the deadline then decides. It sends its *verdict* to the others, which wait a short time for it.
//!
//! Small leaves are reduced by every worker. Large ones are sent as one flat vector per dtype: each worker reduces a
//! range of it and sends the result to all others, in two more rounds of the same call.
//!
//! A [`Transport`](distribute_net::Transport) of `distribute-net` sends the bytes. A team of threads and a group have
//! no common trait, because a team passes pointers and a group bytes.
//!
//! | module | contents |
//! |---|---|
//! | `workers` | [`Group`]: the workers of a world, seen by one of them |
//! | `reformable` | links that are replaced when the group re-forms |
//! | [`local`] | groups whose workers are threads of this process |
//! | [`frame`], [`inbox`] | [`Frame`]: a message between workers; [`Inbox`]: received frames, by session |
//! | [`checksums`], `loss` | [`Checksums`] of messages; [`Loss`]: why a worker is lost to another one |
//! | [`session`] | [`Session`]: the calls of one step |
//! | [`protocol`], [`round`] | the state of a worker in a session, and in one round: pure state machines |
//! | `repeated_calls` | the digests of calls that a session made before |
//! | `exchange` | rounds of repeated calls by workers that share memory |
//! | `recorder` | the last calls of this worker, reported with a blame |
//! | [`group_call`] | [`GroupCall`]: a call of the replicas of all workers, in one round or several |
//! | `reduce`, `raw` | reducing and gathering leaves, in the one order of sums; elements as bytes |
//! | `vectors` | exchanging and summing vectors of numbers, whose lengths all workers know |
//! | [`early`] | [`EarlySend`]: vectors that are sent before the call in which they are used |
//! | [`order`] | [`SumOptions`]: order, algorithm and wire format of a sum, as a pure table |
//! | `exact`, `fast`, `native` | sums by assignees of ranges, by a schedule, by a library such as MPI |
//! | `schedule` | the transfers of an algorithm, as functions of the number of workers and bytes |
//! | `native_transport` | links with an additional library that sums, such as NCCL next to sockets |
//! | [`buffer`] | [`Buffers`]: memory that is filled, sent in place, and reused |
//! | `wire`, `pieces` | numbers in half precision; a vector in several parts |
//!
//! # Extending this module
//!
//! - A transport: implement [`Transport`](distribute_net::Transport), and add a variant to [`local::Links`], so that
//!   the conformance suite and the tests of several workers run over it. If it needs a library of the system, create a
//!   crate in `engines`.
//! - A library that reduces: implement a [`NativeSum`](distribute_net::NativeSum) for its transport or, if it sends no
//!   messages, use it in addition to a transport ([`Group::with_native_sum`]).
//! - An algorithm of [`Order::Fast`]: add a variant to `Algorithm`, its row to the tables of `order`, and its function
//!   to `schedule`, whose tests execute it.
//! - An operation of all replicas: add a variant to [`Operation`](distribute_cluster::Operation), a method to
//!   [`GroupCall`], and a file next to `all_reduce`.

// - INV-2: A missed deadline only ends the run: the straggler must not take part in the others' next call. Only if
//   a worker is lost or times out in the very last round of a call may the call be made on some workers and fail on
//   others. Those that made it get the error in their next call. A worker with a verdict forwards it, so that it
//   reaches those that have lost the worker that decided. Workers that cannot communicate may have different texts:
//   those on both sides of a network partition, or at the ends of a link that broke; and two that decide at the
//   same time, if calls wait for less than 1.2 s. Tests: `collective/tests/team.rs`,
//   `collective/tests/it/group.rs`, `group/protocol/tests.rs`, `simulation/tests/it/scenarios.rs`.

pub mod buffer;
pub mod checksums;
pub mod early;
mod exact;
mod exchange;
mod fast;
pub mod frame;
pub mod group_call;
pub mod inbox;
pub mod local;
mod loss;
mod native;
mod native_transport;
pub mod order;
mod pieces;
pub mod protocol;
mod raw;
mod recorder;
mod reduce;
mod reformable;
mod repeated_calls;
pub mod round;
mod schedule;
pub mod session;
mod vectors;
mod wire;
mod workers;

pub use buffer::{Buffer, Buffers, numbers};
pub use checksums::Checksums;
pub use distribute_tensor::Wire;
pub use early::EarlySend;
pub use frame::{Content, Frame, SessionId};
pub use group_call::GroupCall;
pub use inbox::Inbox;
pub use local::Links;
pub use loss::Loss;
pub use order::{Algorithm, Order, SumOptions};
pub use protocol::Protocol;
pub use recorder::Waits;
pub use session::Session;
pub use wire::Real;
pub use workers::Group;
