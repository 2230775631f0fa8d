//! Connections between processes. Like TCP, a connection preserves the order of messages and loses nothing while it is
//! open. The network delays messages, can be interrupted for a time, and breaks connections.

use crate::agenda::Agenda;
use distribute_net::Message;
use distribute_testing::SplitMix;
use std::time::Duration;

/// The duration of silence after which a worker is considered lost. By default, `distribute_net` also detects the loss
/// within this time.
pub const SILENCE: Duration = Duration::from_secs(3);

/// The id of a process, in the order in which processes start.
pub type Pid = usize;

/// The id of a connection, in the order of connection attempts.
pub type Conn = usize;

/// An arrival over a connection. `M` is the type of messages.
#[derive(Clone, Debug)]
pub enum Arrival<M = Message> {
    /// The connection has been established. Only the side that connected receives this.
    Made,
    /// Bytes of the handshake.
    Words(Vec<u8>),
    /// A message over the connection.
    Message(M),
    /// The connection has been closed, for the given reason.
    Closed(String),
}

/// A type of events that includes the events of a network.
pub trait Carries {
    /// The type of the messages that the network carries.
    type Message;

    /// Creates the event in which a connection attempt reaches a host.
    fn reach(conn: Conn, port: u16) -> Self;

    /// Creates the event in which something arrives at one end of a connection.
    fn arrive(conn: Conn, side: usize, what: Arrival<Self::Message>) -> Self;
}

#[derive(Debug)]
struct Connection {
    /// The process that connected, and the process that accepted.
    ends: [Option<Pid>; 2],
    /// The hosts of both ends.
    hosts: [usize; 2],
    /// Whether the connection is open on each side. The accepting side is not open until the connection attempt has
    /// reached its host.
    open: [bool; 2],
    /// Whether the connection broke and lost the messages in transit.
    broken: bool,
    /// The time at which the last message that was sent to each side arrives.
    last: [Duration; 2],
}

/// The last interruption of the network from one host to another. Both times are 0 if there was none.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    from: Duration,
    until: Duration,
}

/// All hosts and connections.
#[derive(Debug)]
pub struct Network {
    random: SplitMix,
    /// The minimum and maximum delay of a message.
    delay: [Duration; 2],
    connections: Vec<Connection>,
    /// The last interruptions, indexed by the sending and then by the receiving host.
    cuts: Vec<Vec<Cut>>,
}

impl Network {
    /// Creates a network with the given number of hosts. `delay` contains the minimum and maximum delay.
    pub fn new(seed: u64, hosts: usize, delay: [Duration; 2]) -> Self {
        let cuts = vec![vec![Cut::default(); hosts]; hosts];
        Self { random: SplitMix(seed), delay, connections: Vec::new(), cuts }
    }

    fn delay(&mut self) -> Duration {
        let [least, most] = self.delay;
        let span = (most - least).as_micros() as usize;
        least + Duration::from_micros(self.random.below(span + 1) as u64)
    }

    /// Returns the arrival time of a message that is sent now. It arrives after the current interruption, if there is
    /// one.
    pub fn arrival(&mut self, now: Duration, from: usize, to: usize) -> Duration {
        let cut = self.cuts[from][to];
        let delay = self.delay();
        // A lost packet is sent again until it arrives.
        if cut.from <= now && now < cut.until { cut.until + delay } else { now + delay }
    }

    /// Interrupts the network from one host to another until the given time. Replaces an earlier interruption, even if
    /// that one would have lasted longer.
    pub fn cut(&mut self, now: Duration, from: usize, to: usize, until: Duration) {
        self.cuts[from][to] = Cut { from: now, until };
    }

    /// Returns the start and the end of the current interruption from one host to another; `None` if there is none.
    pub fn is_cut(&self, now: Duration, from: usize, to: usize) -> Option<(Duration, Duration)> {
        let Cut { from, until } = self.cuts[from][to];
        (from <= now && now < until).then_some((from, until))
    }

    /// Starts a connection attempt from the process `pid` on the host `from` to a port of the host `to`. Returns the id
    /// of the connection.
    pub fn connect<E: Carries>(
        &mut self,
        agenda: &mut Agenda<E>,
        pid: Pid,
        from: usize,
        to: usize,
        port: u16,
    ) -> Conn {
        let conn = self.connections.len();
        let zero = [Duration::ZERO; 2];
        self.connections.push(Connection {
            ends: [Some(pid), None],
            hosts: [from, to],
            open: [true, false],
            broken: false,
            last: zero,
        });
        let at = self.arrival(agenda.now(), from, to);
        agenda.at(at, E::reach(conn, port));
        conn
    }

    /// Returns the host to which a connection leads.
    pub fn leads_to(&self, conn: Conn) -> usize {
        self.connections[conn].hosts[1]
    }

    /// Completes a connection attempt that has reached its host. `pid` is the process that accepts the connection; if
    /// it is `None`, the attempt fails. Does nothing if the connecting process has given up.
    pub fn reach<E: Carries>(&mut self, agenda: &mut Agenda<E>, conn: Conn, pid: Option<Pid>) {
        let connection = &mut self.connections[conn];
        if !connection.open[0] {
            return;
        }
        connection.ends[1] = pid;
        connection.open[1] = pid.is_some();
        let answer = match pid {
            Some(_) => Arrival::Made,
            None => Arrival::Closed("connection refused".to_owned()),
        };
        self.give(agenda, conn, 0, answer);
    }

    /// Sends something over a connection, if it is still open on the side of the process `pid`.
    pub fn send<E: Carries>(
        &mut self,
        agenda: &mut Agenda<E>,
        pid: Pid,
        conn: Conn,
        what: Arrival<E::Message>,
    ) {
        let Some(side) = self.side(conn, pid) else { return };
        if self.connections[conn].open[side] {
            self.give(agenda, conn, 1 - side, what);
        }
    }

    fn give<E: Carries>(
        &mut self,
        agenda: &mut Agenda<E>,
        conn: Conn,
        side: usize,
        what: Arrival<E::Message>,
    ) {
        let [from, to] = [1 - side, side].map(|side| self.connections[conn].hosts[side]);
        let at = self.arrival(agenda.now(), from, to).max(self.connections[conn].last[side]);
        self.connections[conn].last[side] = at;
        agenda.at(at, E::arrive(conn, side, what));
    }

    /// Closes the connection on a process's side. The other side is notified after all messages that were sent before.
    pub fn close<E: Carries>(&mut self, agenda: &mut Agenda<E>, pid: Pid, conn: Conn, reason: &str) {
        self.send(agenda, pid, conn, Arrival::Closed(reason.to_owned()));
        self.forget(pid, conn);
    }

    /// Breaks a connection. Messages in transit are lost, and both sides are notified.
    pub fn cut_off<E: Carries>(&mut self, agenda: &mut Agenda<E>, conn: Conn) {
        self.connections[conn].broken = true;
        for side in [0, 1] {
            self.give(agenda, conn, side, Arrival::Closed("connection reset".to_owned()));
        }
    }

    /// Closes the connection on one side without notifying the other.
    pub fn forget(&mut self, pid: Pid, conn: Conn) {
        if let Some(side) = self.side(conn, pid) {
            self.connections[conn].open[side] = false;
        }
    }

    /// Returns the process that receives an arrival. Returns `None` if the connection is not open on this side, or if
    /// the arrival was lost because the connection broke. If the arrival is that the connection was closed, closes this
    /// side.
    pub fn receiver<M>(&mut self, conn: Conn, side: usize, what: &Arrival<M>) -> Option<Pid> {
        let connection = &mut self.connections[conn];
        let pid = connection.ends[side].filter(|_| connection.open[side])?;
        if let Arrival::Closed(_) = what {
            connection.open[side] = false;
            return Some(pid);
        }
        (!connection.broken).then_some(pid)
    }

    /// Returns the open connections of a process.
    pub fn of(&self, pid: Pid) -> Vec<Conn> {
        (0..self.connections.len()).filter(|conn| self.is_open(*conn, pid)).collect()
    }

    /// Returns `true` if a process has this connection open.
    pub fn is_open(&self, conn: Conn, pid: Pid) -> bool {
        self.side(conn, pid).is_some_and(|side| self.connections[conn].open[side])
    }

    /// Returns the process and the host at the other end of a connection, or `None` if the process `pid` is not at an
    /// end of the connection. The process at the other end is `None` if the connection attempt has not reached one.
    pub fn peer(&self, conn: Conn, pid: Pid) -> Option<(Option<Pid>, usize)> {
        let side = self.side(conn, pid)?;
        Some((self.connections[conn].ends[1 - side], self.connections[conn].hosts[1 - side]))
    }

    /// Returns the process at one end of a connection; `None` if the connection attempt has not reached one. `side` is
    /// 0 for the process that connected, and 1 for the one that accepted.
    pub fn end(&self, conn: Conn, side: usize) -> Option<Pid> {
        self.connections[conn].ends[side]
    }

    fn side(&self, conn: Conn, pid: Pid) -> Option<usize> {
        self.connections[conn].ends.iter().position(|end| *end == Some(pid))
    }
}
