//! A simulated cluster in virtual time: workers that join and work, on a network with delays, broken
//! connections and partitions.
//!
//! The simulation runs the decisions of real processes:
//! [`Meeting`](distribute_net::rendezvous::meeting::Meeting), `Membership`, `Claim` and the handshake;
//! [`Protocol`](distribute_collective::group::Protocol) with its `Round` and `Inbox`; and, after a loss,
//! [`Handover`](distribute_collective::recovery::Handover) with its `Report`s. Each is a state machine
//! without socket, thread or clock. Sockets, TLS, shared memory and the mesh do not run. `network` simulates
//! them: a connection keeps the order of messages and loses nothing while it is open.
//!
//! | module | contents |
//! |---|---|
//! | `scenario` | [`Scenario`]: a kind of plans, and how to run one |
//! | `plan`, `script` | the faults, and the calls of workers, as functions of a seed |
//! | `world` | `Simulation`: all processes, and replacements of processes that have ended |
//! | `process` | one process: `joining`, then `working`, repeatedly |
//! | `program` | its program: `scripted`, or a `training` of a `course` |
//! | `coordinator` | another cluster: a coordinator, its workers, and servers that they change |
//! | `guests` | connections that have not authenticated yet |
//! | `network`, `event`, `agenda` | connections; events; the queue of events |
//! | `checks` | the rules that must hold after every event and at the end |
//! | `planted` | [`Planted`]: bugs that must be detected |
//! | `history` | the history, for people |
//!
//! A simulation is determined by its seed:
//!
//! ```text
//! cargo run -p distribute-simulation -- --scenario train-killed --seed 7
//! ```

#![forbid(unsafe_code)]

mod agenda;
mod checks;
mod context;
mod coordinator;
mod course;
mod event;
mod guests;
mod history;
mod joining;
mod network;
mod plan;
mod planted;
mod process;
mod program;
mod scenario;
mod script;
mod scripted;
mod training;
mod working;
mod world;

pub use planted::Planted;
pub use scenario::Scenario;
pub use world::Report;
