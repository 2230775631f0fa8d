//! Connections between processes: each keeps the order of what is sent over it and loses nothing as long as it lasts, as TCP
//! does. It delays, is cut off for a while, and breaks.

use crate::agenda::Agenda;
use distribute_net::Message;
use distribute_testing::SplitMix;
use std::time::Duration;

/// After so long without a sign of life a worker is lost to those that work (`distribute_net::Settings::silence`).
pub const SILENCE: Duration = Duration::from_secs(3);

/// A process, by the order of starts.
pub type Pid = usize;

/// A connection, by the order of attempts.
pub type Conn = usize;

/// What comes out of a connection, over which `M` are sent.
#[derive(Clone, Debug)]
pub enum Arrival<M = Message> {
    /// It has been made. Only the side that asked for it is told.
    Made,
    /// Words of the handshake.
    Words(Vec<u8>),
    /// A message.
    Message(M),
    /// It has ended.
    Closed(String),
}

/// The events of a world that has a network.
pub trait Carries {
    /// What is sent over its connections.
    type Message;

    /// An attempt to connect reaches a host.
    fn reach(conn: Conn, port: u16) -> Self;

    /// Something arrives at one end of a connection.
    fn arrive(conn: Conn, side: usize, what: Arrival<Self::Message>) -> Self;
}

#[derive(Debug)]
struct Connection {
    /// The process that has asked for it, and the one that it was made to.
    ends: [Option<Pid>; 2],
    /// Which hosts these are on.
    hosts: [usize; 2],
    /// Whether each side still has it open.
    open: [bool; 2],
    /// Whether it has broken, and what was on the way with it.
    broken: bool,
    /// When the last thing that was sent arrives at each side.
    last: [Duration; 2],
}

/// Between two hosts, in one direction.
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
    /// When nothing goes from one host to another.
    cuts: Vec<Vec<Cut>>,
}

impl Network {
    /// A network of so many hosts, whose delays lie between these two.
    pub fn new(seed: u64, hosts: usize, delay: [Duration; 2]) -> Self {
        let cuts = vec![vec![Cut::default(); hosts]; hosts];
        Self { random: SplitMix(seed), delay, connections: Vec::new(), cuts }
    }

    fn delay(&mut self) -> Duration {
        let [least, most] = self.delay;
        let span = (most - least).as_micros() as usize;
        least + Duration::from_micros(self.random.below(span + 1) as u64)
    }

    /// When something that is sent now arrives.
    pub fn arrival(&mut self, now: Duration, from: usize, to: usize) -> Duration {
        let cut = self.cuts[from][to];
        let delay = self.delay();
        // What is lost is sent again until it comes.
        if cut.from <= now && now < cut.until { cut.until + delay } else { now + delay }
    }

    /// Nothing goes from one host to another until then.
    pub fn cut(&mut self, now: Duration, from: usize, to: usize, until: Duration) {
        self.cuts[from][to] = Cut { from: now, until };
    }

    /// Since when nothing comes from one host to another, if so, and until when.
    pub fn is_cut(&self, now: Duration, from: usize, to: usize) -> Option<(Duration, Duration)> {
        let Cut { from, until } = self.cuts[from][to];
        (from <= now && now < until).then_some((from, until))
    }

    /// A process asks for a connection to a host.
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

    /// Which host it leads to.
    pub fn leads_to(&self, conn: Conn) -> usize {
        self.connections[conn].hosts[1]
    }

    /// The connection has reached a process, or nobody.
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

    /// A process sends something, if the connection still is open there.
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

    /// A process closes its side, and the other one learns it after everything that was sent before.
    pub fn close<E: Carries>(&mut self, agenda: &mut Agenda<E>, pid: Pid, conn: Conn, reason: &str) {
        self.send(agenda, pid, conn, Arrival::Closed(reason.to_owned()));
        self.forget(pid, conn);
    }

    /// The connection breaks. What is on the way is lost, and both sides learn it.
    pub fn cut_off<E: Carries>(&mut self, agenda: &mut Agenda<E>, conn: Conn) {
        self.connections[conn].broken = true;
        for side in [0, 1] {
            self.give(agenda, conn, side, Arrival::Closed("connection reset".to_owned()));
        }
    }

    /// A side is gone, and nobody learns it from the connection.
    pub fn forget(&mut self, pid: Pid, conn: Conn) {
        if let Some(side) = self.side(conn, pid) {
            self.connections[conn].open[side] = false;
        }
    }

    /// Who gets what has come, if the connection still is open there. After its end nothing comes.
    pub fn receiver<M>(&mut self, conn: Conn, side: usize, what: &Arrival<M>) -> Option<Pid> {
        let connection = &mut self.connections[conn];
        let pid = connection.ends[side].filter(|_| connection.open[side])?;
        if let Arrival::Closed(_) = what {
            connection.open[side] = false;
            return Some(pid);
        }
        (!connection.broken).then_some(pid)
    }

    /// The open connections of a process.
    pub fn of(&self, pid: Pid) -> Vec<Conn> {
        (0..self.connections.len()).filter(|conn| self.is_open(*conn, pid)).collect()
    }

    /// Whether a process has this connection open.
    pub fn is_open(&self, conn: Conn, pid: Pid) -> bool {
        self.side(conn, pid).is_some_and(|side| self.connections[conn].open[side])
    }

    /// The process and the host at the other end.
    pub fn peer(&self, conn: Conn, pid: Pid) -> Option<(Option<Pid>, usize)> {
        let side = self.side(conn, pid)?;
        Some((self.connections[conn].ends[1 - side], self.connections[conn].hosts[1 - side]))
    }

    /// The process at one end, if the connection has reached one.
    pub fn end(&self, conn: Conn, side: usize) -> Option<Pid> {
        self.connections[conn].ends[side]
    }

    fn side(&self, conn: Conn, pid: Pid) -> Option<usize> {
        self.connections[conn].ends.iter().position(|end| *end == Some(pid))
    }
}
