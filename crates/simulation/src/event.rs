//! The events of a simulated cluster.

use crate::network::{Arrival, Carries, Conn, Pid};
use distribute_net::{Claim, Message};

/// An event of a simulation.
#[derive(Clone, Debug)]
pub enum Event {
    /// A process starts, possibly by mistake. `claim` contains the generation of which it claims to have been a member.
    Start { rank: usize, claim: Claim, mistaken: bool },
    /// A connection attempt reaches a port of a host.
    Reach { conn: Conn, port: u16 },
    /// Something arrives at one end of a connection.
    Arrive { conn: Conn, side: usize, what: Arrival },
    /// A timer of a process expires. It has an effect only if it is the latest timer of that process.
    Wake { pid: Pid, number: u64 },
    /// A fault of the plan begins.
    Fault(usize),
    /// A stopped process resumes.
    Resume(Pid),
    /// All processes check whether others have been silent for too long.
    Look,
}

impl Carries for Event {
    type Message = Message;

    fn reach(conn: Conn, port: u16) -> Self {
        Self::Reach { conn, port }
    }

    fn arrive(conn: Conn, side: usize, what: Arrival) -> Self {
        Self::Arrive { conn, side, what }
    }
}
