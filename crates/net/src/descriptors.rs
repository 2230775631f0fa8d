//! The limit of files and sockets that this process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No process needs more. Where the system sets no limit, some programs that this one may start count to it.
const ENOUGH: u64 = 1 << 20;

/// Lets this process have as many files and sockets as the system allows. Most systems say 1,024 to start with, for the sake of old
/// programs; a server with its connections, some of which have shared memory, needs several times as many.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if limit.current.is_some_and(|current| current < most) {
        let raised = Rlimit { current: Some(most), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, most, "the limit of open files stays as it is");
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
        let most = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
        let low = Rlimit { current: Some(most / 2), maximum: limit.maximum };
        setrlimit(Resource::Nofile, low).unwrap();
        raise();
        assert!(getrlimit(Resource::Nofile).current.is_none_or(|current| current >= most));
    }
}
