//! Why there is no link, and what to do about it.

use std::io;

/// Why two hosts cannot be made and linked. Nothing is left of them.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A program is missing.
    #[error(
        "--link needs {tool}, which can't be started ({source}): install {package}; there is none for systems other than Linux"
    )]
    Tool {
        /// The program.
        tool: &'static str,
        /// The package that has it.
        package: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// This process may not make a namespace.
    #[error(
        "--link makes two network namespaces, and this process may not ({source}): run it as root, or, where users may have \
         namespaces of their own, as `unshare --user --map-root-user distribute-bench --link …`"
    )]
    NotAllowed {
        /// What unshare says.
        source: io::Error,
    },
    /// The kernel cannot limit a device.
    #[error(
        "`{command}` failed ({source}): where the kernel has no token bucket, load it (modprobe sch_tbf); --link unlimited does \
         without"
    )]
    Limit {
        /// What was run.
        command: String,
        /// What tc says.
        source: io::Error,
    },
    /// The devices cannot be made.
    #[error(
        "`{command}` failed ({source}): where the kernel has no pairs of devices, load them (modprobe veth)"
    )]
    Device {
        /// What was run.
        command: String,
        /// What ip says.
        source: io::Error,
    },
}

impl LinkError {
    /// A command of [`commands`](super::commands::commands) has failed.
    pub fn of(words: &[String], source: io::Error) -> Self {
        let command = words.join(" ");
        match words.first().map(String::as_str) {
            Some("tc") => Self::Limit { command, source },
            _ => Self::Device { command, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_failed_is_named_with_what_to_do() {
        let failed = |command: &str| {
            let words: Vec<_> = command.split(' ').map(String::from).collect();
            LinkError::of(&words, io::Error::other("unknown")).to_string()
        };
        let (tc, ip) = (failed("tc qdisc add"), failed("ip link add"));
        assert!(tc.contains("`tc qdisc add` failed (unknown)") && tc.contains("sch_tbf"), "{tc}");
        assert!(ip.contains("`ip link add` failed (unknown)") && ip.contains("veth"), "{ip}");
    }
}
