//! Errors of creating a link, with advice.

use std::io;

/// An error because the two hosts cannot be created or linked. Any that were created have been removed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A required program is missing.
    #[error(
        "--link needs {tool}, which can't be started ({source}): install {package}; there is none for systems other than Linux"
    )]
    Tool {
        /// The name of the program.
        tool: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// This process may not create a namespace.
    #[error(
        "--link makes two network namespaces, and this process may not ({source}): run it as root, or, where users may have \
         their own namespaces, as `unshare --user --map-root-user distribute-bench --link …`"
    )]
    NotAllowed {
        /// The error that `unshare` reported.
        source: io::Error,
    },
    /// The kernel cannot limit a device.
    #[error(
        "`{command}` failed ({source}): where the kernel has no token bucket, load it (modprobe sch_tbf); --link unlimited does \
         without"
    )]
    Limit {
        /// The command that failed.
        command: String,
        /// The error that `tc` reported.
        source: io::Error,
    },
    /// The devices cannot be created.
    #[error(
        "`{command}` failed ({source}): where the kernel has no pairs of devices, load them (modprobe veth)"
    )]
    Device {
        /// The command that failed.
        command: String,
        /// The error that `ip` reported.
        source: io::Error,
    },
}

impl LinkError {
    /// Creates the error for a command from [`commands`](super::commands::commands) that failed.
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
    fn a_failed_command_is_named_with_advice() {
        let failed = |command: &str| {
            let words: Vec<_> = command.split(' ').map(String::from).collect();
            LinkError::of(&words, io::Error::other("unknown")).to_string()
        };
        let (tc, ip) = (failed("tc qdisc add"), failed("ip link add"));
        assert!(tc.contains("`tc qdisc add` failed (unknown)") && tc.contains("sch_tbf"), "{tc}");
        assert!(ip.contains("`ip link add` failed (unknown)") && ip.contains("veth"), "{ip}");
    }
}
