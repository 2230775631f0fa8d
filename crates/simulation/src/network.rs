//! Connections between processes. Like TCP, a connection keeps the order of messages and loses nothing while
//! it is open. The network delays messages, is cut for a time, and breaks connections.

use crate::agenda::Agenda;
use distribute_net::Message;
use distribute_testing::SplitMix;
use std::time::Duration;

/// The silence after which workers consider a worker lost (`distribute_net::Settings::silence`).
pub const SILENCE: Duration = Duration::from_secs(3);

/// A process, by the order of starts.
pub type Pid = usize;

/// A connection, by the order of attempts.
pub type Conn = usize;

/// An arrival over a connection that carries messages `M`.
#[derive(Clone, Debug)]
pub enum Arrival<M = Message> {
    /// The connection has been made. Only the side that connected receives this.
    Made,
    /// Words of the handshake.
    Words(Vec<u8>),
    /// A message.
    Message(M),
    /// The connection has been closed, for this reason.
    Closed(String),
}

/// The events of a world that has a network.
pub trait Carries {
    /// The type of messages.
    type Message;

    /// Creates the event of a connection attempt that reaches a host.
    fn reach(conn: Conn, port: u16) -> Self;

    /// Creates the event of an arrival at one end of a connection.
    fn arrive(conn: Conn, side: usize, what: Arrival<Self::Message>) -> Self;
}

#[derive(Debug)]
struct Connection {
    /// The process that connected, and the process that accepted.
    ends: [Option<Pid>; 2],
    /// The hosts of both ends.
    hosts: [usize; 2],
    /// Whether each side still has the connection open.
    open: [bool; 2],
    /// Whether the connection has broken, and lost the messages in transit.
    broken: bool,
    /// The arrival time of the last message to each side.
    last: [Duration; 2],
}

/// An interruption between two hosts, in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    from: Duration,
    until: Duration,
}

/// All connections.
#[derive(Debug)]
pub struct Network {
    random: SplitMix,
    /// The shortest and the longest delay.
    delay: [Duration; 2],
    connections: Vec<Connection>,
    /// The interruptions, by sending and receiving host.
    cuts: Vec<Vec<Cut>>,
}

impl Network {
    /// Creates a network of this number of hosts, with delays between these two.
    pub fn new(seed: u64, hosts: usize, delay: [Duration; 2]) -> Self {
        let cuts = vec![vec![Cut::default(); hosts]; hosts];
        Self { random: SplitMix(seed), delay, connections: Vec::new(), cuts }
    }

    fn delay(&mut self) -> Duration {
        let [least, most] = self.delay;
        let span = (most - least).as_micros() as usize;
        least + Duration::from_micros(self.random.below(span + 1) as u64)
    }

    /// Returns the arrival time of a message that is sent now.
    pub fn arrival(&mut self, now: Duration, from: usize, to: usize) -> Duration {
        let cut = self.cuts[from][to];
        let delay = self.delay();
        // A lost packet is sent again until it arrives.
        if cut.from <= now && now < cut.until { cut.until + delay } else { now + delay }
    }

    /// Interrupts the network from one host to another until this time.
    pub fn cut(&mut self, now: Duration, from: usize, to: usize, until: Duration) {
        self.cuts[from][to] = Cut { from: now, until };
    }

    /// Returns the beginning and the end of the current interruption from one host to another.
    pub fn is_cut(&self, now: Duration, from: usize, to: usize) -> Option<(Duration, Duration)> {
        let Cut { from, until } = self.cuts[from][to];
        (from <= now && now < until).then_some((from, until))
    }

    /// Connects a process to a host.
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

    /// Completes a connection attempt that has reached a process, or fails it if there is none.
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

    /// Sends a message, if the connection is still open on the side of this process.
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

    /// Closes the side of a process. The other side is notified after all messages sent before.
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

    /// Closes a side without notifying the other.
    pub fn forget(&mut self, pid: Pid, conn: Conn) {
        if let Some(side) = self.side(conn, pid) {
            self.connections[conn].open[side] = false;
        }
    }

    /// Returns the receiver of an arrival, if the connection is still open on its side. Nothing arrives after
    /// the end.
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

    /// Whether a process has this connection open.
    pub fn is_open(&self, conn: Conn, pid: Pid) -> bool {
        self.side(conn, pid).is_some_and(|side| self.connections[conn].open[side])
    }

    /// Returns the process and the host at the other end.
    pub fn peer(&self, conn: Conn, pid: Pid) -> Option<(Option<Pid>, usize)> {
        let side = self.side(conn, pid)?;
        Some((self.connections[conn].ends[1 - side], self.connections[conn].hosts[1 - side]))
    }

    /// Returns the process at one end, if the connection has reached one.
    pub fn end(&self, conn: Conn, side: usize) -> Option<Pid> {
        self.connections[conn].ends[side]
    }

    fn side(&self, conn: Conn, pid: Pid) -> Option<usize> {
        self.connections[conn].ends.iter().position(|end| *end == Some(pid))
    }
}
