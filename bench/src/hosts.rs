//! Two hosts that are network namespaces of this machine, and starting processes on them.

use super::error::invalid;
use distribute::Error;
use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv4Addr;
use std::process::Command;
use std::str::FromStr;

/// A host: a network namespace, and the process that keeps it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    address: Ipv4Addr,
    keeper: u32,
}

impl Host {
    /// Creates a host in the network namespace of the process `keeper`.
    pub fn new(address: Ipv4Addr, keeper: u32) -> Self {
        Self { address, keeper }
    }

    /// Returns the address of the host in the network that connects both hosts.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the id of the process that keeps the namespace alive.
    pub fn keeper(&self) -> u32 {
        self.keeper
    }

    /// Creates a command that runs on the host. Only the network differs from this machine; files, processes and the
    /// user are the same.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper)).arg("--").arg(program);
        command
    }
}

/// Two hosts. The text form for other processes is `ADDRESS@PROCESS,ADDRESS@PROCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts([Host; 2]);

impl Hosts {
    /// Creates the hosts for workers 0 and 1.
    pub fn new(hosts: [Host; 2]) -> Self {
        Self(hosts)
    }

    /// Returns both hosts, in the order of workers.
    pub fn all(&self) -> impl Iterator<Item = &Host> {
        self.0.iter()
    }

    /// Returns the host of worker 0.
    pub fn first(&self) -> &Host {
        &self.0[0]
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.0;
        write!(f, "{}@{},{}@{}", a.address, a.keeper, b.address, b.keeper)
    }
}

impl FromStr for Hosts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let host = |text: &str| {
            let (address, keeper) = text.split_once('@')?;
            Some(Host { address: address.parse().ok()?, keeper: keeper.parse().ok()? })
        };
        let both = text.split_once(',').and_then(|(a, b)| Some(Self([host(a)?, host(b)?])));
        both.ok_or_else(|| invalid(format!("--hosts {text:?} is not ADDRESS@PROCESS,ADDRESS@PROCESS")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts::new([Host::new([10, 0, 0, 1].into(), 12), Host::new([10, 0, 0, 2].into(), 34)])
    }

    #[test]
    fn hosts_are_said_as_they_are_read() {
        let text = "10.0.0.1@12,10.0.0.2@34";
        assert_eq!((hosts().to_string().as_str(), text.parse::<Hosts>().unwrap()), (text, hosts()));
        for text in ["", "10.0.0.1@12", "10.0.0.1@12,b@34", "10.0.0.1@12,10.0.0.2@x"] {
            assert!(text.parse::<Hosts>().unwrap_err().to_string().contains(&format!("{text:?}")), "{text}");
        }
    }

    #[test]
    fn a_program_starts_in_the_namespace_of_its_host() {
        let mut command = hosts().first().command("ls");
        command.arg("-l");
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(command.get_program(), "nsenter");
        assert_eq!(words, ["--net=/proc/12/ns/net", "--", "ls", "-l"]);
    }
}
