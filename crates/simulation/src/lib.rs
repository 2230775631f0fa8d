//! A simulated cluster: workers that join and work, on a network that delays, breaks and parts, in virtual time.
//!
//! What is simulated is the code that real processes run, where it decides: [`Meeting`](distribute_net::rendezvous::meeting::Meeting),
//! `Membership`, `Claim` and the handshake, and [`Protocol`](distribute_collective::group::Protocol) with its `Round` and `Inbox`, and what
//! they come to when one was lost, a [`Handover`](distribute_collective::recovery::Handover) with its `Report`s. Each is a
//! state machine without socket, thread or clock. Sockets, TLS, shared memory and the mesh are not run, but played by `network`:
//! connections keep the order of what is sent and lose nothing as long as they last.
//!
//! | module | what it is |
//! |---|---|
//! | `scenario` | [`Scenario`]: a kind of plans, and how to run one |
//! | `plan`, `script` | what happens to workers, and what they do, as functions of a seed |
//! | `world` | `Simulation`: all processes, and others in the places of those that have ended |
//! | `process` | one of them: `joining`, then `working`, and that again |
//! | `program` | what it runs: `scripted`, or a `training` of a `course` |
//! | `coordinator` | another cluster: a coordinator, its workers, and servers that they change |
//! | `guests` | those who connect to it |
//! | `network`, `event`, `agenda` | connections; what happens; events in the order of time |
//! | `checks` | what has to hold after every event and at the end |
//! | `planted` | [`Planted`]: bugs that have to be found |
//! | `history` | what has happened, to be read |
//!
//! A seed settles everything:
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
