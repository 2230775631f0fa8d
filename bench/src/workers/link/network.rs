//! Two hosts and the link between them, which exist as long as the value that represents them.

use super::commands::commands;
use super::error::LinkError;
use super::rate::Rate;
use crate::hosts::{Host, Hosts};
use crate::program::Program;
use distribute::cluster::Deadline;
use std::io;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

/// The programs that are required, and the Debian packages that contain them.
const TOOLS: [(&str, &str); 4] =
    [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")];

/// The addresses of the hosts, which no other machine can reach.
const ADDRESSES: [[u8; 4]; 2] = [[10, 77, 0, 1], [10, 77, 0, 2]];

/// The maximum time for a command that only calls the kernel.
const PROMPT: Duration = Duration::from_secs(30);

/// Two hosts and the link between them.
///
/// The namespaces have no names, so the kernel removes them and their devices when the last process in them exits. The
/// first process in each is a keeper. A keeper exits when the `Network` is dropped, or when this process exits for any
/// reason.
pub struct Network {
    hosts: Hosts,
    _keepers: [Keeper; 2],
}

impl Network {
    /// Creates both hosts and the link.
    ///
    /// # Errors
    /// Returns a [`LinkError`], which contains advice.
    pub fn new(rate: Rate) -> Result<Self, LinkError> {
        for (tool, package) in TOOLS {
            run(Command::new(tool).arg("-V")).map_err(|source| LinkError::Tool { tool, package, source })?;
        }
        let keeper = || Keeper::new().map_err(|source| LinkError::NotAllowed { source });
        let keepers = [keeper()?, keeper()?];
        let [a, b] = &keepers;
        let hosts = [(ADDRESSES[0], a), (ADDRESSES[1], b)];
        let hosts = Hosts::new(hosts.map(|(address, keeper)| Host::new(address.into(), keeper.program.id())));
        for (host, words) in commands(&hosts, rate) {
            let Some((program, arguments)) = words.split_first() else { continue };
            run(host.command(program).args(arguments)).map_err(|source| LinkError::of(&words, source))?;
        }
        Ok(Self { hosts, _keepers: keepers })
    }

    /// Returns the hosts, on which processes can be started.
    pub fn hosts(&self) -> Hosts {
        self.hosts
    }
}

/// A process that keeps a new namespace alive. It only reads its standard input, until that is closed.
struct Keeper {
    program: Program,
    /// The keeper's standard input. It is closed when this process exits, even if it is killed. The keeper then reads
    /// the end of the stream and exits.
    _open: Option<ChildStdin>,
}

impl Keeper {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "echo inside; exec cat"]);
        let mut program = Program::start(command.stdin(Stdio::piped()).stderr(Stdio::piped()))?;
        let open = program.take_stdin();
        let deadline = Deadline::after(PROMPT);
        match program.line(deadline)? {
            Some(_) => Ok(Self { program, _open: open }),
            None => Err(program.rest(deadline).err().unwrap_or(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Runs a command whose output is only needed if it fails.
fn run(command: &mut Command) -> io::Result<()> {
    let program = Program::start(command.stdin(Stdio::null()).stderr(Stdio::piped()))?;
    program.rest(Deadline::after(PROMPT)).map(drop)
}
