//! The address at which a task listens.

use crate::error::ClusterError;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The address of a task, that is, a host and a port: `node-7:2222`, `10.0.0.7:2222`, `[fd00::7]:2222`.
///
/// ```
/// use distribute_cluster::Address;
/// let address: Address = "[fd00::7]:2222".parse()?;
/// assert_eq!(address.port(), 2222);
/// assert_eq!(address.to_string(), "[fd00::7]:2222");
/// assert!("node-7".parse::<Address>().is_err());
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    host: Host,
    port: u16,
}

/// The host of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A host name, which is resolved when a connection is established. Two names are equal only if they are spelled
    /// identically.
    Name(Box<str>),
    /// An IP address.
    Ip(IpAddr),
}

impl Host {
    /// Returns whether the host always refers to the machine that uses it: a loopback address, or a name such as
    /// `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                matches!(
                    name.as_str(),
                    "localhost" | "localhost.localdomain" | "ip6-localhost" | "ip6-loopback"
                ) || name.ends_with(".localhost")
            }
        }
    }

    /// Returns whether the host is an unspecified address, such as `0.0.0.0`, which means all addresses of a machine. A
    /// process can listen at it, but none can connect to it.
    pub fn is_unspecified(&self) -> bool {
        matches!(self, Host::Ip(ip) if ip.to_canonical().is_unspecified())
    }
}

impl fmt::Display for Host {
    /// Formats the host as in an address: IPv6 addresses are in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or("a \"[\" without its \"]\"")?;
            let ip: Ipv6Addr = inner.parse().map_err(|_| "not an IPv6 address between the brackets")?;
            return Ok(Host::Ip(ip.into()));
        }
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(Host::Ip(ip.into()));
        }
        match text {
            "" => Err("no host"),
            _ if text.contains("://") => Err("an address has no scheme; leave it out"),
            _ if text.contains(':') => Err("several colons; write an IPv6 address in brackets"),
            _ if text.len() > 253 => Err("a host name has at most 253 bytes"),
            _ if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) => {
                Err("a host name consists of letters, digits, \"-\", \"_\" and \".\"")
            }
            // For example 10.0.0.256 or 10.0.7, which some resolvers would read as another address.
            _ if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.contains('.') => {
                Err("not an IPv4 address")
            }
            _ => Ok(Host::Name(text.into())),
        }
    }
}

impl Address {
    /// Creates an address from a host and a port.
    pub fn new(host: Host, port: u16) -> Self {
        Self { host, port }
    }

    /// Returns the host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the port; 0 means that the operating system chooses one.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why: &str| ClusterError::Address { found: text.into(), why: why.into() };
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((inner, after)) => {
                let port = after.strip_prefix(':').ok_or_else(|| wrong("no port"))?;
                (&text[..inner.len() + 2], port)
            }
            None => text.rsplit_once(':').ok_or_else(|| wrong("no port"))?,
        };
        let host = host.parse::<Host>().map_err(wrong)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        match port.parse() {
            Ok(port) if digits => Ok(Self { host, port }),
            _ => Err(wrong("the port is not a number from 0 to 65535")),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = ClusterError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Result<Address, String> {
        text.parse().map_err(|error: ClusterError| error.to_string())
    }

    #[test]
    fn names_and_ips_round_trip_as_text() {
        for text in ["h:1", "node-7.lab_2:65535", "10.0.0.7:2222", "[::1]:23965", "[fd00::7]:0", "3com:80"] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_address_gets_a_reason() {
        for (text, why) in [
            ("h", "no port"),
            ("", "no port"),
            (":1", "no host"),
            ("h:", "the port is not a number"),
            ("h:+1", "the port is not a number"),
            ("h:65536", "the port is not a number"),
            ("h:1 ", "the port is not a number"),
            ("grpc://h:1", "no scheme"),
            ("fd00::7:2222", "write an IPv6 address in brackets"),
            ("[fd00::7]", "no port"),
            ("[fd00::7]2222", "no port"),
            ("[fd00::7:2222", "without its"),
            ("[h]:1", "not an IPv6 address"),
            ("[fe80::1%eth0]:1", "not an IPv6 address"),
            ("my host:1", "letters, digits"),
            ("10.0.0.256:1", "not an IPv4 address"),
            ("10.0.7:1", "not an IPv4 address"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn loopback_is_recognized_by_name_and_number() {
        for text in [
            "localhost",
            "LocalHost.",
            "a.localhost",
            "127.0.0.1",
            "127.8.9.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(text.parse::<Host>().unwrap().is_loopback(), "{text}");
        }
        for text in ["localhosts", "mylocalhost", "10.0.0.1", "[::2]", "0.0.0.0"] {
            assert!(!text.parse::<Host>().unwrap().is_loopback(), "{text}");
        }
        assert!("0.0.0.0".parse::<Host>().unwrap().is_unspecified());
        assert!("[::]".parse::<Host>().unwrap().is_unspecified());
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "[\\[\\]a-f0-9:.%-]{0,24}|.{0,24}") {
            if let Ok(parsed) = text.parse::<Address>() {
                prop_assert_eq!(parsed.to_string().parse::<Address>().ok(), Some(parsed));
            }
        }
    }
}
