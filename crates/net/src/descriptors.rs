//! The limit on the number of files and sockets of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest limit that [`raise`] sets, which is more than any process needs. A program that this process starts
/// inherits the limit, and some programs loop over all descriptors up to it.
const MAX_LIMIT: u64 = 1 << 20;

/// Raises this process's limit on open files and sockets to the maximum that the system allows, but not above
/// [`MAX_LIMIT`]. A failure is only logged.
///
/// Most systems start with 1,024, for compatibility with old programs. A server with many connections, some of them
/// over shared memory, needs several times that number.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
    if limit.current.is_some_and(|current| current < most) {
        let raised = Rlimit { current: Some(most), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, most, "failed to raise the limit of open files");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-83
    #[test]
    fn the_limit_of_the_process_becomes_that_of_the_system() {
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        let low = Rlimit { current: Some(most / 2), maximum: limit.maximum };
        setrlimit(Resource::Nofile, low).unwrap();
        raise();
        assert!(getrlimit(Resource::Nofile).current.is_none_or(|current| current >= most));
    }
}
