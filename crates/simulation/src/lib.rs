//! A simulated cluster in virtual time. Workers join and work on a network with delays, broken connections and
//! partitions.
//!
//! The simulation runs the decisions of real processes:
//! [`RendezvousState`](distribute_net::rendezvous::state::RendezvousState), `Membership`, `Claim` and the handshake;
//! [`Protocol`](distribute_collective::group::Protocol) with its `Round` and `Inbox`; and, after a loss,
//! [`StateTransfer`](distribute_collective::recovery::StateTransfer) with its `Report`s. Each is a state machine
//! without sockets, threads or clocks. Sockets, TLS, shared memory and the mesh are not run, but simulated by
//! `network`: a connection preserves the order of messages and loses nothing while it is open.
//!
//! | module | contents |
//! |---|---|
//! | `scenario` | [`Scenario`]: a kind of plans, and how to run one |
//! | `plan`, `script` | the faults, and the calls of workers, as functions of a seed |
//! | `world` | `Simulation`: all processes, and replacements of processes that have ended |
//! | `process`, `context` | one process, and its access to the world |
//! | `joining`, `working` | the two alternating states of a process, which use state machines of `net` and `collective` |
//! | `program`, `scripted` | the program of a process, and one that makes the calls of a script |
//! | `training`, `course` | a program that trains, and a training run as a function of the seed |
//! | `coordinator` | another cluster: a coordinator, its workers, and servers that they change |
//! | `rows` | another cluster: workers that cache and prefetch rows of tables, which are compared with their history |
//! | `guests` | connections that have not authenticated yet |
//! | `network`, `event`, `agenda` | connections; events; the queue of events |
//! | `checks` | the rules that must hold after every event and at the end |
//! | `planted` | [`Planted`]: bugs that must be detected |
//! | `history` | the history, for people |
//!
//! This crate never uses a thread, a clock, or an order that does not depend on the seed. A step's own code is not
//! simulated, nor is the response of a completed training run to workers that join later. The launcher is simulated: it
//! starts a replacement for each process that has exited. In worlds that grow and shrink, each batch has one example
//! per cluster index. An example that is skipped or used twice is therefore visible in the weights.
//!
//! A new fault is a variant of `plan::Fault`, and its effect is implemented in `world`. A new rule belongs in `checks`.
//! A seed that has broken a rule is kept in the tests, with the planted bug that it finds. Because a seed's plan
//! changes when scenarios change, the faulty state machine also gets a unit test.
//!
//! On 2026-11-23 a release build (`--seeds 20000`, 2 Zen4 cores shared with other builds) ran 20,000 seeds of each of
//! 20 scenarios. This was 1,950 virtual hours with 444 million events, took 5 minutes on one core, and broke no rule.
//! No rule was broken either by 20,000 seeds of each scenario that grows or shrinks, by 20,000 seeds of each scenario
//! with a coordinator (2026-11-24), by 3,000 seeds of each scenario with spares, by 20,000 seeds of each scenario with
//! rows of tables (2026-11-30), or by 100 seeds with 64 workers. Each of the 61 planted bugs is found within 1,000
//! seeds of one scenario.
//!
//! The seed completely determines a simulation:
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
mod rows;
mod scenario;
mod script;
mod scripted;
mod training;
mod working;
mod world;

pub use planted::Planted;
pub use scenario::Scenario;
pub use world::Report;
