//! The check that two workers are on one machine and can open each other's memory.

/// Returns a digest that is equal for two processes that can share memory, or `None` if the system lacks the data for
/// it. The digest covers the id of the machine's boot, the namespace of process ids, and the user. It also covers
/// `nonce`, so it is valid for one connection and reveals nothing to other processes.
#[cfg(target_os = "linux")]
pub(crate) fn identity(nonce: &[u8; 32]) -> Option<[u8; 32]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let processes = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let user = rustix::process::geteuid().as_raw().to_le_bytes();
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in [b"distribute machine", &boot[..], processes.as_os_str().as_encoded_bytes(), &user, nonce] {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Some(digest)
}

/// Returns `None`: only Linux lets processes find each other's memory through `/proc`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn identity(_nonce: &[u8; 32]) -> Option<[u8; 32]> {
    None
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_for_one_connection_and_another_for_each() {
        assert_eq!(identity(&[1; 32]), identity(&[1; 32]));
        assert_ne!(identity(&[1; 32]).unwrap(), identity(&[2; 32]).unwrap());
    }
}
